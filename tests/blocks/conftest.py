"""One Prefect server and one S3 server for the tests of blocks, both within the reach of containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from prefect_gpu.sandbox import Sandbox
from tests.live.pool import LivePool, work_pool
from tests.radosgw import S3Server, missing, s3_server
from tests.server import prefect_server
from tests.support import require


@pytest.fixture(scope="package")
def reachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with prefect_server(tmp_path_factory, host="0.0.0.0") as box:
        yield box


@pytest.fixture
def sandbox(reachable: Sandbox) -> Iterator[Sandbox]:
    """The server, which this process uses, too."""
    with temporary_settings({PREFECT_API_URL: reachable.api_url, PREFECT_HOME: reachable.home}):
        yield reachable


@pytest.fixture(scope="package")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    lacking = missing()
    require(f"Ceph's object gateway ({', '.join(lacking)})", not lacking)
    with s3_server(tmp_path_factory.mktemp("s3"), listen="0.0.0.0") as started:
        yield started


@pytest_asyncio.fixture
async def pool(sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LivePool]:
    """A gpu pool without a worker yet."""
    async with work_pool("pool", request.node.nodeid) as (client, name):
        live = LivePool(sandbox, client, name, tmp_path)
        yield live
        await asyncio.to_thread(live.stop_workers)
