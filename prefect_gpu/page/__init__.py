"""The pool's own page: what the devices do, who waits, and why; read-only, served by the worker, without a network.

It knows neither Prefect nor the controller: a :class:`~prefect_gpu.page.app.Source` tells it what to show.
"""
