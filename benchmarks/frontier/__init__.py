"""Worlds that others published, with their figures, ours, and bounds."""
