"""A pool on the three-node Swarm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks._host.served import using
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.lab.sandbox import Sandbox, SandboxError, wait_until
from tests.live.cluster.pool import ClusterPool
from tests.live.pool import work_pool


@pytest_asyncio.fixture
async def swarm(
    cluster: Lab, wide_sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[ClusterPool]:
    """A gpu pool without a worker yet, whose workers start containers. After the test, no container may be left."""
    with using(wide_sandbox):
        async with work_pool("swarm", request.node.nodeid) as (client, name):
            live = ClusterPool(wide_sandbox, client, name, tmp_path, cluster)
            yield live
            (tmp_path / "go").touch()
            try:
                with suppress(SandboxError):  # a run's end takes a moment longer than its state
                    what = "the containers to be removed"
                    await asyncio.to_thread(wait_until, lambda: not live.containers(), what=what)
                left = live.containers()
            finally:
                await asyncio.to_thread(live.stop_workers)
                live.remove_containers()
    assert not left, f"containers are left: {left}"
