"""The next job prepares while its predecessor still trains (Liquid §6.1)."""
