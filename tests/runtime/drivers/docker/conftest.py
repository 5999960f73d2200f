"""What all tests of the docker drivers need: see :mod:`tests.cluster`."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_gpu.lab import docker_nodes
from prefect_gpu.runtime.drivers.docker import Endpoint


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Making the image takes half a minute."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def engine(cluster: docker_nodes.Lab) -> Endpoint:
    """One of them."""
    return Endpoint(cluster.nodes[1].url)
