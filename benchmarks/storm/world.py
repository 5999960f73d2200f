"""The pool that the storm is about: a server, a proxy before it, workers that take over from each other, and runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectException
from prefect.states import AwaitingRetry, Cancelling

from benchmarks._host.served import deploy, read_runs, settings
from prefect_gpu.lab.sandbox import Process, Sandbox
from tests.live.proxy import Proxy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEVICES = 3
KEPT, CANCELLED, DELETED, MAY_GO = "kept", "cancelled", "deleted", "may go"
"""What the users have done with a run. One whose deployment is deleted may go with it, unless it trains already."""
_STATE_BYTES = 64 << 20
_STEP_S = 0.1
_AGE_S = 400 * 86_400.0
FOREIGN = {"README": True, "thesis/chapter-1.tex": False, "thesis/old/notes": True, "d41d8": True}
"""What somebody else keeps in the folder of checkpoints, and whether it is old."""


@dataclass
class Submitted:
    """A run that was submitted.

    Attributes:
        steps: Of a training; None for one that misbehaves, whose result is its own affair.
        fate: What its user did with it.
    """

    id: UUID
    steps: int | None
    fate: str = KEPT


class World:
    """See the module. A context manager.

    Args:
        sandbox: With a server; its pool exists.
        folder: For everything else.
        former: A folder with the code of an earlier version, which a worker may be rolled back to; None: there is none.
        chance: Decides on how long trainings are, and who misbehaves.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        client: PrefectClient,
        pool: str,
        folder: Path,
        former: Path | None,
        chance: random.Random,
    ) -> None:
        self.sandbox, self.client, self.pool, self.folder, self.former = sandbox, client, pool, folder, former
        self.proxy = Proxy(sandbox.port)
        self.state, self.checkpoints = folder / "state", folder / "checkpoints"
        self.clock = folder / "clock"
        self.runs: dict[UUID, Submitted] = {}
        self.workers: list[Process] = []
        self.frozen: list[tuple[float, float]] = []  # monotonic seconds in which a worker stood still by our hand
        self.limits: list[str] = []  # what this machine cannot do
        self._chance = chance
        self._preload: Path | None = None
        self._deployments = 0
        self._submitting = asyncio.Lock()
        self._bystanders: list[subprocess.Popen[bytes]] = []  # processes of somebody else
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> World:
        for folder in (self.state, self.checkpoints, self.folder / "locks"):
            folder.mkdir()
        self._plant_foreign_files()
        self.set_clock(0.0)
        self._preload = stepped_clock(self.folder)
        if self._preload is None:
            self.limits.append("no clock is stepped: there is no C compiler (gcc)")
        if self.former is None:
            self.limits.append("no worker is rolled back: the checkout has no earlier version")
        self._exits.enter_context(self._small_disk())
        await self._exits.enter_async_context(self.proxy)
        self._exits.callback(self.stop_workers)
        self._exits.callback(self._end_bystanders)
        self.deployment = await deploy(HERE / "trainings.py", "fit", self.pool)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    # -- workers --------------------------------------------------------------------------------------------------

    def start_worker(self, *, former: bool = False) -> None:
        """One more worker; it stands by if another leads. With `former`, of the earlier version."""
        env = self.environment(self.state, self.checkpoints)
        if former:
            env |= {"PYTHONPATH": str(self.former), **settings(keep_days="36500")}  # it removes whatever is old
        else:
            env["STORM_STANDSTILLS"] = str(self.folder / "standstills")
            env["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(HERE / "loop_watch")))
        if self._preload is not None:
            env |= {"LD_PRELOAD": str(self._preload), "STORM_CLOCK": str(self.clock)}
        self.workers.append(self.sandbox.start_worker(self.pool, env=env, wait=False))

    def environment(self, state: Path, checkpoints: Path) -> dict[str, str]:
        """The variables of a worker with these folders."""
        ours = settings(
            virtual_devices=str(DEVICES),
            state_dir=str(state),
            checkpoints=str(checkpoints),
            cancel_grace_seconds="3",
        )
        return {**ours, "PREFECT_API_URL": self.proxy.api_url, "PREFECT_WORKER_QUERY_SECONDS": "5"}

    def living(self) -> list[Process]:
        """The workers that are not dead, the oldest first."""
        return [worker for worker in self.workers if worker.popen.poll() is None]

    @contextlib.contextmanager
    def standing_still(self, worker: Process) -> Iterator[None]:
        """The worker is stopped, and goes on at the end."""
        begun = time.monotonic()
        worker.popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            worker.popen.send_signal(signal.SIGCONT)
            self.frozen.append((begun, time.monotonic() + 1.0))

    def stop_workers(self) -> None:
        """No worker is left."""
        for worker in self.living():
            worker.kill()

    def set_clock(self, offset_s: float) -> None:
        """What the workers' clocks show is so many seconds off from now on."""
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("@l", round(offset_s)))

    # -- runs -----------------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        """One more run, as the server lets us: what cannot be submitted was not."""
        steps = self._chance.randrange(10, 80)
        variables: dict[str, object] = {"exclusive": True, "preemptible": self._chance.random() < 0.3}
        if self._chance.random() < 0.1:
            variables["gpus"] = DEVICES
        parameters = {"folder": str(self.folder), "steps": steps, "step_s": _STEP_S}
        async with self._submitting:
            run = await self.client.create_flow_run_from_deployment(
                self.deployment, parameters=parameters, job_variables=variables
            )
            self.runs[run.id] = Submitted(run.id, steps)

    async def submit_misbehaving(self, flow: str, **parameters: object) -> None:
        """A run that does harm if it can."""
        deployment = await deploy(HERE / "trainings.py", flow, self.pool, name=flow)
        run = await self.client.create_flow_run_from_deployment(
            deployment, parameters={"folder": str(self.folder), **parameters}
        )
        self.runs[run.id] = Submitted(run.id, None)

    async def cancel(self, run: UUID) -> None:
        """As its user does. A run that is over already stays what it is."""
        self.runs[run].fate = CANCELLED
        with contextlib.suppress(PrefectException, httpx.HTTPError):
            await self.client.set_flow_run_state(run, Cancelling())

    async def delete(self, run: UUID) -> None:
        """As its user does."""
        self.runs[run].fate = DELETED
        with contextlib.suppress(PrefectException, httpx.HTTPError):
            await self.client.delete_flow_run(run)

    async def retry(self, run: UUID) -> None:
        """As its user does with one that was cancelled. It begins anew: with the cancellation its checkpoints went."""
        there = (await self.client.read_flow_run(run)).deployment_id == self.deployment
        self.runs[run].fate = KEPT if there else MAY_GO
        line = {"at": time.monotonic(), "run": str(run), "what": "is retried"}
        with (self.folder / "diary").open("a") as diary:
            diary.write(json.dumps(line) + "\n")
        await self.client.set_flow_run_state(run, AwaitingRetry())

    async def delete_flow(self) -> None:
        """As its user does, who deploys it again later. All of its runs go with it."""
        async with self._submitting:
            await self.client.delete_flow((await self.client.read_deployment(self.deployment)).flow_id)
            for run in self.runs.values():
                if run.steps is not None:
                    run.fate = DELETED
            self.deployment = await deploy(HERE / "trainings.py", "fit", self.pool)

    async def delete_deployment(self) -> None:
        """As its user does, once there is another. Prefect deletes the runs of it that have not begun."""
        former = self.deployment
        self._deployments += 1
        self.deployment = await deploy(HERE / "trainings.py", "fit", self.pool, name=f"fit-{self._deployments}")
        for run in self.runs.values():
            if run.fate == KEPT:
                run.fate = MAY_GO
        await self.client.delete_deployment(former)

    async def seen(self) -> list[FlowRun]:
        """All runs that the server has of ours."""
        return await read_runs(self.client, list(self.runs))

    async def open(self) -> list[UUID]:
        """Those that are not over."""
        return [run.id for run in await self.seen() if run.state is None or not run.state.is_final()]

    async def cancelled(self) -> list[UUID]:
        """The trainings whose cancellation is over."""
        return [
            run.id for run in await self.seen() if run.state and run.state.is_cancelled() and self.runs[run.id].steps
        ]

    # -- disks ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _small_disk(self) -> Iterator[None]:
        """The workers' state is on a file system of its own, which can be filled."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={_STATE_BYTES}", "tmpfs", str(self.state)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            self.limits.append("no disk is filled: a small file system cannot be mounted here (root can)")
            yield
            return
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(self.state)], check=False)

    def give_pids_to_others(self) -> None:
        """All processes of runs are gone, and their numbers are those of processes of somebody else."""
        for process in self.sandbox.runs_left():
            with contextlib.suppress(Exception):
                process.kill()
        for file in self.state.glob("runs/*/process.json"):
            with contextlib.suppress(OSError, ValueError):  # the disk is full, or the power was lost
                known = json.loads(file.read_text())
                other = subprocess.Popen(["sleep", "infinity"], start_new_session=True)
                self._bystanders.append(other)
                file.write_text(json.dumps(known | {"pid": other.pid, "supervisor_pid": other.pid}))

    def _end_bystanders(self) -> None:
        for other in self._bystanders:
            other.kill()
            other.wait()

    @property
    def can_fill_disk(self) -> bool:
        """Whether the state's file system is one of its own."""
        return self.state.is_mount()

    def _plant_foreign_files(self) -> None:
        for name, old in FOREIGN.items():
            file = self.checkpoints / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_content(name))
            if old:  # as if nobody had touched it for years
                then = time.time() - _AGE_S
                for one in (file, *file.parents):
                    if one == self.checkpoints:
                        break
                    os.utime(one, (then, then))

    def touched(self) -> list[str]:
        """The files of others that are not as they were, and the processes of others that are not there any more."""
        files = {name: self.checkpoints / name for name in FOREIGN}
        gone = [name for name, file in files.items() if not file.exists() or file.read_text() != _content(name)]
        return gone + [f"process {other.pid}" for other in self._bystanders if other.poll() is not None]


def _content(name: str) -> str:
    return f"this is {name}\n"


def stepped_clock(folder: Path) -> Path | None:
    """What is to be preloaded for a clock that can be stepped; None where it cannot be made."""
    if shutil.which("gcc") is None:
        return None
    made = folder / "stepped_clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", made, HERE / "stepped_clock.c", "-ldl"], check=True)
    return made
