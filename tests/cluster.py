"""Three real Docker Engines in network namespaces, joined to a Swarm, and containers that use this machine's Python."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prefect_gpu import lab
from prefect_gpu.runtime.drivers.docker import Endpoint

IMAGE = "prefect-gpu-test:1"
ROOT = Path(__file__).parents[1]
_CACHE = Path("/var/tmp/prefect-gpu-images/debian.tar")


def missing() -> list[str]:
    """What this machine lacks, as people would say it."""
    return [*lab.missing(), *([] if shutil.which("debootstrap") else ["the program debootstrap"])]


@contextlib.contextmanager
def started(nodes: int = 3, devices: int = 2) -> Iterator[lab.Lab]:
    """The Engines, one Swarm, with a small image on each.

    Args:
        devices: Virtual devices of each node.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))  # each process has a lab of its own
    folder = Path(tempfile.gettempdir()) / f"prefect-gpu-lab-{os.getpid()}"
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    try:
        with lab.Lab(folder, nodes=nodes, prefix=f"pgt{number}", subnet=f"10.77.{number}") as running:
            for node in running.nodes:
                client = Endpoint(node.url).connect()
                lab.debian_image(client, IMAGE, _CACHE)
                client.close()
            labels = {"prefect-gpu.virtual-devices": str(devices), "prefect-gpu.virtual-device-memory": "4GiB"}
            running.join_swarm({node.name: labels for node in running.nodes})
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def volumes(*more: Path) -> list[str]:
    """What a container needs to run this checkout with this machine's Python, which is that of its image's Debian."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr")}
    folders = [*(folder for folder in sorted(prefixes) if not folder.is_relative_to(ROOT)), ROOT]
    return [*(f"{folder}:{folder}:ro" for folder in folders), *(f"{folder}:{folder}" for folder in more)]


def environment() -> dict[str, str]:
    """The variables that go with it."""
    return {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
