"""Deadlines that are promised: kept as often as is said, and refused no more often than must be."""
