"""F-scheduling (2020)."""
