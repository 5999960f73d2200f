"""How instances of runs are started and followed: processes, containers, allocations of Slurm."""
