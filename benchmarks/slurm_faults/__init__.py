"""Every fault of a Slurm cluster, some times each, with twenty runs in flight."""
