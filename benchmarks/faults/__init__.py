"""Every fault of a cluster, many times, with dozens of runs in flight."""
