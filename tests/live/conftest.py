"""A pool of its own for each test, or for each module whose tests only look at one, on this process's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate

from benchmarks._host.served import using
from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.worker import GpuWorker
from tests.live.pool import FAILED, LivePool, live_pool, none_left
from tests.live.proxy import Proxy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here starts servers and workers: leave it out of `make test-quick`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep whether a test has failed, for what tidies up behind it."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest_asyncio.fixture
async def pool(sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LivePool]:
    """A gpu pool without a worker yet. After the test no run's process may be left."""
    async with live_pool(sandbox, tmp_path, request.node.nodeid) as live:
        yield live
        if request.node.stash.get(FAILED, False):
            for worker in live.workers:
                print(f"The end of the log of a worker (process {worker.popen.pid}):\n{worker.output[-5000:]}")
    none_left(sandbox, request.node)


@pytest_asyncio.fixture
async def proxy(pool: LivePool) -> AsyncIterator[Proxy]:
    """What stands between the pool's workers, and their runs, and Prefect."""
    async with Proxy(pool.sandbox.port) as standing:
        yield standing
        await standing.heal()
        await asyncio.to_thread(pool.stop_workers)


@pytest.fixture(scope="module")
def serving(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> LivePool:
    """A pool with a worker on two devices, one for all tests of a module: most of a short test is its worker's start.

    The worker does not learn, so that no test's runs are expected to behave as those of another did. It has no page.
    """
    name = f"shared-{abs(hash(request.node.nodeid)) % 10**8}"
    template = GpuWorker.get_default_base_job_template()
    with using(sandbox), get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=name, type="gpu", base_job_template=template))
    live = LivePool(sandbox, None, name, tmp_path_factory.mktemp("shared"))  # each test has a client of its own
    request.addfinalizer(live.stop_workers)
    live.start_worker(virtual_devices="2", cancel_grace_seconds="2", learn="false", page="false")
    return live


@pytest_asyncio.fixture
async def served(serving: LivePool, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LivePool]:
    """The module's pool, whose worker must be left as it was found. After the test no run's process may be left.

    A test that failed may leave runs that wait: they are cancelled, so that the next test finds the pool empty.
    """
    sandbox = serving.sandbox
    with using(sandbox):
        async with get_client() as serving.client:
            yield serving
            for held in ("go", "never"):
                (tmp_path / held).touch()
            if request.node.stash.get(FAILED, False):
                await serving.cancel_all()
    none_left(sandbox, request.node)
