"""Runs on nodes that Slurm lends: see :mod:`.driver`. The block of the shapes needs :mod:`.shapes` and no more."""
