"""A real Prefect server for the session; a pool of its own for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from prefect_gpu.sandbox import Sandbox, wait_until
from tests.live.pool import LivePool, work_pool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here starts servers and workers: leave it out of `make test-quick`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A private Prefect server."""
    with (
        Sandbox(tmp_path_factory.mktemp("sandbox")) as box,
        temporary_settings({PREFECT_API_URL: box.api_url, PREFECT_HOME: box.home}),
    ):
        yield box


@pytest_asyncio.fixture
async def pool(sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LivePool]:
    """A gpu pool without a worker yet. After the test no run's process may be left."""
    # Again, since a fixture of another test that failed as it ended may have left its own server's settings.
    with temporary_settings({PREFECT_API_URL: sandbox.api_url, PREFECT_HOME: sandbox.home}):
        async with work_pool("pool", request.node.nodeid) as (client, name):
            live = LivePool(sandbox, client, name, tmp_path)
            yield live
            (tmp_path / "go").touch()
            await asyncio.to_thread(live.stop_workers)
    wait_until(lambda: not sandbox.runs_left(), what=f"processes of runs are left: {sandbox.runs_left()}")
