"""A pool of its own for each test of blocks, and an S3 server that gives roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks._host.served import using
from prefect_gpu.lab.sandbox import Sandbox
from tests.live.pool import LivePool, live_pool
from tests.radosgw import S3Server, s3_server


@pytest.fixture
def server(sandbox: Sandbox) -> Sandbox:
    """Where the pool is; a module whose runs are containers says otherwise."""
    return sandbox


@pytest.fixture
def used(server: Sandbox) -> Iterator[Sandbox]:
    """The server, which this process uses, too."""
    with using(server):
        yield server


@pytest.fixture(scope="session")
def s3_with_roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Another S3 server, whose STS gives a role."""
    with s3_server(tmp_path_factory.mktemp("s3"), listen="0.0.0.0", sts=True) as started:
        yield started


@pytest_asyncio.fixture
async def pool(used: Sandbox, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LivePool]:
    """A gpu pool without a worker yet."""
    async with live_pool(used, tmp_path, request.node.nodeid) as live:
        yield live
