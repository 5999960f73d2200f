"""Ours, for study: plans that look ahead for gangs on networks."""
