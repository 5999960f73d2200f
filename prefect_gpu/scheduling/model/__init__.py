"""What the scheduler speaks of: nodes, jobs, events, instructions, and what the outside world can do."""
