"""Where the containers of a gang go: pure kernels on one number per node.

`Placer.place(gang, free, topology, rng)` gives a node for each container, or None. `GangBestFit` and `Genetic` are
Liquid's two (§5).
"""
