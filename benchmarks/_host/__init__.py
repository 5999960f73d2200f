"""The host of all live benchmarks: something that starts a pool, submits runs, waits for them, and tears all down.

:mod:`~benchmarks._host.pool` is a pool without Prefect, and :mod:`~benchmarks._host.served` one with it.
"""
