"""The machines that runs start on: this one, those of an Engine or a Swarm, and those that Slurm lends."""
