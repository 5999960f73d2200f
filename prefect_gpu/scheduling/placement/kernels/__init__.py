"""Where the containers of a gang go: pure kernels on one number per node; two of them are Liquid's (§5)."""
