"""How good are the estimates? Real trainings that were run here, and what is learned from them."""
