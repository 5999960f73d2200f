"""What the scheduler knows: devices, jobs, who waits, and what nodes can ever hold."""
