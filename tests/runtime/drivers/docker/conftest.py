"""Three real Docker Engines in network namespaces, joined to a Swarm, each with a small image."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu import lab
from prefect_gpu.runtime.drivers.docker import Endpoint
from tests.support import require

IMAGE = "prefect-gpu-test:1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Making the image takes half a minute."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def cluster() -> Iterator[lab.Lab]:
    """The Engines, one Swarm."""
    lacking = [*lab.missing(), *([] if shutil.which("debootstrap") else ["the program debootstrap"])]
    require(f"what Docker Engines of our own need ({', '.join(lacking)})", not lacking)
    folder = Path(tempfile.gettempdir()) / f"prefect-gpu-lab-{os.getpid()}"
    try:
        with lab.Lab(folder, nodes=3, prefix="pgt") as running:
            for node in running.nodes:
                client = Endpoint(node.url).connect()
                lab.debian_image(client, IMAGE, folder / "debian.tar")
                client.close()
            running.join_swarm()
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(cluster: lab.Lab) -> Endpoint:
    """One of them."""
    return Endpoint(cluster.nodes[1].url)
