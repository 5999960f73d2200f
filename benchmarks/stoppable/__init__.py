"""Sixty stoppable trainings of mixed sizes on four virtual devices: ours, SRSF, and ours before issue 18."""
