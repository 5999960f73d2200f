"""What papers compare with: placements and queues of other systems."""
