"""The pool itself on the GPU of this machine, with Prefect: what the kit of :mod:`benchmarks.gpu` does without it.

It needs the package with its extra ``worker``, and PyTorch. Without an NVIDIA GPU all of it runs on a virtual device,
which is the CPU, and it says so.
"""
