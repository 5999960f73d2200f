"""What the controller does with runs: it launches, adjusts, evicts and ends them."""
