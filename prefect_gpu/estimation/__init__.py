"""What runs are expected to need, learned from runs that finished."""
