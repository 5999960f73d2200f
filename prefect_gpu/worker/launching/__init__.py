"""From a grant to a process: the run is claimed, its configuration filled in, and its credentials taken."""
