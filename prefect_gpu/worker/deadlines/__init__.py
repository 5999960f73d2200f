"""Deadlines: which ones could be promised, and what Prefect is told of those that are."""
