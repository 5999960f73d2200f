"""FGD (Weng et al., ATC 2023): pods that ask for parts of GPUs, for cores, memory and models, and never leave."""
