"""What belongs to one paper alone: its profiles, algorithms, worlds and experiments."""
