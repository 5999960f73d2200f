"""The GPU measurement kit: what pre-scheduling, events, sharing, caps and core tuning do on the GPU of this machine.

It needs the source tree, Python, PyTorch and numpy: no Prefect, no network. The real controller, scheduler, driver and
channel run real trainings; only Prefect is replaced, by :mod:`benchmarks.gpu.pool`. Without an NVIDIA GPU all of it
runs on a *virtual device*, which is the CPU: that shows that it works, not what a GPU would gain, and it says so.
"""
