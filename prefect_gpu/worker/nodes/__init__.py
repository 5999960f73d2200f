"""The machines that runs start on, and what is ready there: this one, those of an Engine or a Swarm, those of Slurm."""
