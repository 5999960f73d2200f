"""A pool of the sandbox as a test sees it: submit, watch, cancel, count."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelling, Scheduled
from typer.testing import CliRunner

from benchmarks._host.served import deploy, read_runs, settings, using
from prefect_gpu.cli import app
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError, wait_until
from prefect_gpu.storage.history import History, HistoryRow
from prefect_gpu.worker import GpuWorker
from tests.forge import SHOWS_AT_ONCE

FLOWS = Path(__file__).with_name("trainings.py")
ALL = {"gpus": 2}  # all devices of the worker that the tests of a module share
# For a worker whose runs all begin before an interpreter could be warm: it would be warmed for nobody.
COLD = {"warm_start": "false"}
FAILED = pytest.StashKey[bool]()  # of a test, once it has
DEADLINE_S = 300.0  # against hanging for ever on however busy a machine; nothing is asserted on time


class LivePool:
    """One work pool with its own state folder, notes file and workers."""

    def __init__(self, sandbox: Sandbox, client: Any, name: str, folder: Path) -> None:
        self.sandbox, self.client, self.name, self.folder = sandbox, client, name, folder
        self.notes = folder / "notes"
        self.notes.touch()
        self.state_dir = folder / "state"
        self.workers: list[Process] = []
        self._deployments: dict[tuple[Path, str], UUID] = {}
        self._deploying = asyncio.Lock()

    # -- workers ----------------------------------------------------------------------------------------------------

    def start_worker(
        self,
        *arguments: str,
        wait: bool = True,
        state_dir: Path | None = None,
        others: Mapping[str, str] | None = None,
        at_once: bool = True,
        **env: str,
    ) -> Process:
        """Start a worker. `env` are settings of ours by their short names, `virtual_devices="1"`; `others` are more.

        At once: it shows at once why runs wait.
        """
        variables = settings(state_dir=str(state_dir or self.state_dir), **{"pass_environment": "NOTES"} | env)
        variables |= {"NOTES": str(self.notes), "PREFECT_WORKER_QUERY_SECONDS": "5"} | (others or {})
        variables |= SHOWS_AT_ONCE if at_once else {}
        worker = self.sandbox.start_worker(self.name, *arguments, env=variables, wait=False)
        self.workers.append(worker)
        if wait:
            said = "Serving pool" if env.get("virtual_devices") != "0" else "no device"
            worker.wait_for_output(said, timeout_s=DEADLINE_S)
        return worker

    def stop_workers(self) -> None:
        for worker in self.workers:
            if worker.popen.poll() is None:
                worker.terminate(timeout_s=10)

    async def command(self, *words: str) -> str:
        """What ``prefect-gpu`` says to these words, whatever its exit code.

        It runs in this process: another one would import Prefect first, which takes seconds of a processor.
        """
        env = {**settings(state_dir=str(self.state_dir)), "COLUMNS": "300"}
        done = await asyncio.to_thread(CliRunner().invoke, app, words, env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output

    # -- runs -------------------------------------------------------------------------------------------------------

    async def deploy(self, flow: str, file: Path = FLOWS) -> UUID:
        async with self._deploying:  # a server on SQLite refuses some of many concurrent changes of one deployment
            if (file, flow) not in self._deployments:
                self._deployments[file, flow] = await deploy(file, flow, self.name)
        return self._deployments[file, flow]

    async def submit(
        self,
        flow: str = "train",
        *,
        file: Path = FLOWS,
        job_variables: dict[str, Any] | None = None,
        queue: str | None = None,
        at: datetime | None = None,
        **parameters: Any,
    ) -> UUID:
        run = await self.client.create_flow_run_from_deployment(
            await self.deploy(flow, file),
            parameters=parameters,
            job_variables=job_variables,
            work_queue_name=queue,
            state=Scheduled(scheduled_time=at) if at else None,
        )
        return run.id

    async def read(self, run_id: UUID) -> FlowRun:
        return await self.client.read_flow_run(run_id)

    async def read_all(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        return await read_runs(self.client, list(run_ids))

    async def history(self, run_id: UUID) -> list[State]:
        return await self.client.read_flow_run_states(run_id)

    async def names(self, run_id: UUID) -> list[str | None]:
        return [state.name for state in await self.history(run_id)]

    async def until(self, run_id: UUID, *names: str, deadline_s: float = DEADLINE_S) -> State:
        """Wait until the run's state has one of the names; no names: until it is final."""

        async def reached() -> State | None:
            state = (await self.read(run_id)).state
            assert state is not None
            return state if (state.name in names if names else state.is_final()) else None

        try:
            return await eventually(reached, f"run {run_id} in {names or 'a final state'}", deadline_s)
        except AssertionError as error:
            logs = "\n".join(worker.output[-3000:] for worker in self.workers)
            raise AssertionError(f"{error}; its states: {await self.names(run_id)}\n{logs}") from None

    async def place(self, run_id: UUID) -> str:
        """What Prefect calls the run's process, once it is told: a short run may end before that."""

        async def told() -> str | None:
            return (await self.read(run_id)).infrastructure_pid

        return str(await eventually(told, f"the infrastructure_pid of run {run_id}"))

    async def until_one(self, run_ids: Sequence[UUID], *names: str) -> UUID:
        """Wait until any of the runs has a state with one of the names, and say which.

        On a busy machine events may come late: the worker need not hear of runs in the order they were submitted in.
        """

        async def reached() -> UUID | None:
            return next((run.id for run in await self.read_all(run_ids) if run.state and run.state.name in names), None)

        found: UUID = await eventually(reached, f"one of {run_ids} in {names}")
        return found

    def history_of_runs(self) -> History:
        """The history that the pool's workers write."""
        self.state_dir.mkdir(exist_ok=True)
        return History(f"sqlite:///{self.state_dir / 'history.db'}")

    async def rows(self, run_ids: Sequence[UUID], attempts: int = 1) -> list[HistoryRow]:
        """The history's rows of these runs, each run's in the order of its tries, once there are so many of each.

        A row comes a moment after the run has ended, and after its page is complete.
        """
        wanted = [str(run_id) for run_id in run_ids]

        async def recorded() -> list[HistoryRow]:
            with self.history_of_runs() as history:
                found = sorted((row for row in history.rows() if row.run_id in wanted), key=lambda row: row.attempt)
            counted = Counter(row.run_id for row in found)
            return found if all(counted[run_id] >= attempts for run_id in wanted) else []

        rows: list[HistoryRow] = await eventually(recorded, f"the history's rows of {wanted}")
        return sorted(rows, key=lambda row: wanted.index(row.run_id))

    def record(self, run_id: UUID) -> dict[str, Any]:
        """What the worker has noted of a run that is launched; empty if it is not."""
        for file in (self.state_dir / "runs").glob(f"{run_id}-*/record.json"):
            with suppress(OSError, ValueError):  # it is being replaced, or the run is over
                return dict(json.loads(file.read_text()))
        return {}

    async def until_weight(self, run_id: UUID, weight: float) -> None:
        """Wait until the run has this share of its device."""

        async def has() -> bool:
            return self.record(run_id).get("weight") == weight

        await eventually(has, f"a share of {weight} for {run_id}")

    async def cancel(self, run_id: UUID) -> None:
        await self.client.set_flow_run_state(run_id, Cancelling())

    async def cancel_all(self) -> None:
        """Cancel every run of the pool that is not over."""
        mine = WorkPoolFilter(name=WorkPoolFilterName(any_=[self.name]))
        for run in await self.client.read_flow_runs(work_pool_filter=mine):
            if run.state is None or not run.state.is_final():
                await self.cancel(run.id)

    def noted(self, word: str = "executed") -> Counter[str]:
        """How often each run has written the word."""
        return Counter(line.split()[1] for line in self.notes.read_text().splitlines() if line.startswith(word + " "))

    async def until_noted(self, run_id: UUID, word: str = "executed") -> None:
        async def noted() -> bool:
            return self.noted(word)[str(run_id)] > 0

        await eventually(noted, f"{word} by {run_id}", every_s=0.1)  # a look at a file


def none_left(sandbox: Sandbox, test: pytest.Item) -> None:
    """Wait until no run's process is left. Those of a test that failed are ended at once, so that only that test fails.

    Either way it is said what was left, and where it stood.
    """
    if not test.stash.get(FAILED, False):
        with suppress(SandboxError):
            wait_until(lambda: not sandbox.runs_left(), what="the end of all runs", timeout_s=DEADLINE_S, every_s=0.2)
    left = [_ended_by_force(process) for process in sandbox.runs_left()]
    assert not left, "\n".join(["Processes of runs are left:", *left])


def _ended_by_force(process: psutil.Process) -> str:
    """What a process was, and where it stood: with PYTHONFAULTHANDLER, SIGABRT has Python write that down."""
    told = str(process)
    with suppress(psutil.Error, OSError):
        told += f" {process.cmdline()}"
        output = Path(f"/proc/{process.pid}/fd/2").readlink()
        process.send_signal(signal.SIGABRT)
        with suppress(psutil.TimeoutExpired):
            process.wait(5.0)
        told += f"\n{output.read_text(errors='replace')[-3000:]}" if output.is_file() else f", which writes to {output}"
    with suppress(psutil.NoSuchProcess):
        process.kill()
    return told


@contextlib.asynccontextmanager
async def live_pool(sandbox: Sandbox, folder: Path, node_id: str, prefix: str = "pool") -> AsyncIterator[LivePool]:
    """A gpu pool of a test's own, without a worker yet. At the end what holds runs lets go of them."""
    with using(sandbox):
        async with work_pool(prefix, node_id) as (client, name):
            live = LivePool(sandbox, client, name, folder)
            yield live
            (folder / "go").touch()
            await asyncio.to_thread(live.stop_workers)


@contextlib.asynccontextmanager
async def work_pool(prefix: str, node_id: str) -> AsyncIterator[tuple[PrefectClient, str]]:
    """A gpu work pool of a test's own on the server that this process uses: a client, and the pool's name."""
    name = f"{prefix}-{abs(hash(node_id)) % 10**8}"
    async with get_client() as client:
        template = GpuWorker.get_default_base_job_template()
        await client.create_work_pool(WorkPoolCreate(name=name, type="gpu", base_job_template=template))
        yield client, name
        await client.delete_work_pool(name)


async def eventually(
    condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S, every_s: float = 1.0
) -> Any:
    """Wait for an async condition to give something true.

    Each look is work for the server that the test waits for: looks become rarer, until there is one every so often.
    """
    end, pause_s = time.monotonic() + deadline_s, every_s / 5
    while True:
        value = await condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(pause_s)
        pause_s = min(every_s, 1.3 * pause_s)
