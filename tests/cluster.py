"""Three real Docker Engines in network namespaces, joined to a Swarm: one lab for each process of the tests."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prefect_gpu.lab import checkout
from prefect_gpu.lab.docker_nodes import Lab
from tests.support import process_number


@contextlib.contextmanager
def started(nodes: int = 3, devices: int = 2) -> Iterator[Lab]:
    """See :func:`prefect_gpu.lab.checkout.started`.

    Args:
        devices: Virtual devices of each node.
    """
    folder = Path(tempfile.gettempdir()) / f"prefect-gpu-lab-{os.getpid()}"
    labels = {"prefect-gpu.virtual-devices": str(devices), "prefect-gpu.virtual-device-memory": "4GiB"}
    with checkout.started(
        folder, nodes=nodes, prefix=f"pgt{process_number()}", subnet=f"10.77.{process_number()}", labels=labels
    ) as running:
        yield running
