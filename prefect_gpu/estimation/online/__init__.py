"""What is learned while runs go on: of one that trains, and from each one that ends."""
