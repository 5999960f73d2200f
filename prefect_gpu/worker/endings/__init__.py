"""How runs end, or are suspended: what Prefect is told, what the history keeps, and what is removed."""
