"""What runs take, and what they leave unused: time, money, energy, idle devices, slowdown, pressure."""
