"""A real Docker Engine, in a network namespace of its own, with a small image."""

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
def engine() -> Iterator[Endpoint]:
    """One Engine."""
    lacking = [*lab.missing(), *([] if shutil.which("debootstrap") else ["the program debootstrap"])]
    require(f"what a Docker Engine of our own needs ({', '.join(lacking)})", not lacking)
    folder = Path(tempfile.gettempdir()) / f"prefect-gpu-lab-{os.getpid()}"
    with lab.Lab(folder, nodes=1, prefix="pgt") as running:
        endpoint = Endpoint(running.nodes[0].url)
        client = endpoint.connect()
        lab.debian_image(client, IMAGE, folder / "debian.tar")
        client.close()
        yield endpoint
    shutil.rmtree(folder, ignore_errors=True)
