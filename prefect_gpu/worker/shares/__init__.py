"""Whose a run is, what its owner is promised, and what each owner has had."""
