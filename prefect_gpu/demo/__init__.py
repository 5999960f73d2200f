"""``make demo``: see on your own machine, without a GPU, what the pool does. Run as ``python -m prefect_gpu.demo``."""
