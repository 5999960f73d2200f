"""CODA (ICDCS 2020): arrays of nodes for CPU jobs and GPU jobs."""
