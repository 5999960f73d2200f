"""Flows travelling to the pool through a local folder.

`upload` and `execute` are Prefect's two bundle steps, each a command (``python -m prefect_gpu.bundles.upload``);
`storage` writes them into the configuration of a work pool that has none.
"""
