"""The pool with Prefect: a private server that this process uses, too, its work pools, deployments and runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.flows import Flow
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect.workers.utilities import get_default_base_job_template_for_infrastructure_type

from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError, stop_on_signals, undisturbed
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow

_AT_ONCE = 200  # flow runs that Prefect gives in one answer
_HISTORY_S = 30.0
_END = 3000  # characters of a worker's log, in an error


@contextlib.contextmanager
def using(sandbox: Sandbox) -> Iterator[Sandbox]:
    """This process uses the sandbox's server, too."""
    with temporary_settings({PREFECT_API_URL: sandbox.api_url, PREFECT_HOME: sandbox.home}):
        yield sandbox


@contextlib.contextmanager
def served(pools: Mapping[str, str], **sandbox: Any) -> Iterator[Sandbox]:
    """A server with work pools, which this process uses, too. At the end nothing of it is left, also after a signal.

    Args:
        pools: The type of each pool, by its name.
        sandbox: Arguments of :class:`~prefect_gpu.lab.sandbox.Sandbox`.
    """
    stop_on_signals()
    box = Sandbox(**sandbox)
    try:
        box.start_server()
        with using(box):
            asyncio.run(_make_pools(pools))
            yield box
    finally:
        with undisturbed():
            box.close()


async def _make_pools(pools: Mapping[str, str]) -> None:
    async with get_client() as client:
        for name, kind in pools.items():
            template = await get_default_base_job_template_for_infrastructure_type(kind)
            pool = WorkPoolCreate(name=name, type=kind, base_job_template=template or {})
            await client.create_work_pool(pool)


def settings(**ours: str) -> dict[str, str]:
    """Settings of a worker of ours, by their short names, as environment variables: ``virtual_devices="1"``."""
    return {f"PREFECT_INTEGRATIONS_GPU_{name.upper()}": value for name, value in ours.items()}


async def deploy(file: Path, flow: str, pool: str, *, name: str | None = None) -> UUID:
    """Deploy a flow of a file in a pool; the deployment is named like the pool by default."""
    source: Any = await Flow.afrom_source(source=str(file.parent), entrypoint=f"{file.name}:{flow}")
    deployment = await source.ato_deployment(name=name or pool, work_pool_name=pool)
    return UUID(str(await deployment.apply()))


async def read_runs(client: PrefectClient, ids: Sequence[UUID]) -> list[FlowRun]:
    """These flow runs, however many."""
    found: list[FlowRun] = []
    for start in range(0, len(ids), _AT_ONCE):
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=list(ids[start : start + _AT_ONCE])))
        found += await client.read_flow_runs(flow_run_filter=chosen, limit=_AT_ONCE)
    return found


async def completed(
    client: PrefectClient, worker: Process, ids: Sequence[UUID], *, deadline_s: float, every_s: float
) -> None:
    """Wait until all runs have completed.

    Args:
        worker: Who runs them.
        every_s: Seconds between two questions, each of which costs the server some milliseconds.

    Raises:
        SandboxError: A run ended otherwise, the worker died, or the time is over. The message has the end of the
            worker's log.
    """
    end = time.monotonic() + deadline_s
    while True:
        runs = await read_runs(client, ids)
        over = [run for run in runs if run.state is not None and run.state.is_final()]
        for run in over:
            assert run.state is not None
            if not run.state.is_completed():
                raise _error(f"{run.name} ended as {run.state.name}: {run.state.message}", worker)
        if len(over) == len(ids):
            return
        if worker.popen.poll() is not None:
            raise _error(f"The worker died; {len(over)} of {len(ids)} runs had ended", worker)
        if time.monotonic() > end:
            raise _error(f"Only {len(over)} of {len(ids)} runs ended within {deadline_s:.0f} s", worker)
        await asyncio.sleep(every_s)


async def recorded(state_dir: Path, ids: Sequence[UUID], worker: Process) -> list[HistoryRow]:
    """The history's rows of runs that have completed; the last one comes a moment after its run's end.

    Args:
        state_dir: Of the worker.

    Raises:
        SandboxError: Not all of them came.
    """
    wanted, end = {str(id_) for id_ in ids}, time.monotonic() + _HISTORY_S
    with History(f"sqlite:///{state_dir / 'history.db'}") as history:
        while True:
            rows = [row for row in history.rows() if row.run_id in wanted]
            if wanted <= {row.run_id for row in rows}:
                return rows
            if time.monotonic() > end:
                raise _error(f"Only {len(rows)} of {len(wanted)} runs are in the history of {state_dir}", worker)
            await asyncio.sleep(0.5)


def _error(words: str, worker: Process) -> SandboxError:
    return SandboxError(f"{words}. The end of the worker's log:\n{worker.output[-_END:]}")
