"""Which of several workers on the same nodes serves the pool."""
