"""Simulated clusters: worlds that carry out a scheduler's instructions on a virtual clock, and jobs to fill them."""
