"""A pool on a cluster of this machine that always has so many runs in flight, while faults happen to it."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State

from benchmarks._host.served import deploy, read_runs, settings
from benchmarks.faults.notes import Notes
from benchmarks.faults.training import result_after
from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError
from prefect_gpu.runtime.cordons import Cordons
from tests.radosgw import S3Server

_NO_REGISTRY = "127.0.0.1:9/nobody/has-this:1"
_LOOK_S = 1.0
# Every second run may be stopped, and would be told that its time is over if that was counted wrongly.
_STOPPABLE = {"preemptible": True, "time_limit": "2h"}
_DEADLINE_S = 900.0  # for the last runs, once no fault happens any more


@dataclass
class Tally:
    """What became of the runs.

    Attributes:
        completed: How many ended Completed once, with the right result, and said so once.
        submitted: How many were submitted.
        wrong: What was wrong, a sentence each.
        hit: By fault, how many runs that had begun were started again until the next one.
        times: By fault, how often it happened.
    """

    completed: int = 0
    submitted: int = 0
    wrong: list[str] = field(default_factory=list)
    hit: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: For people.
        happen: Does it, waits, and undoes it.
        quick: Whether that takes no time.
    """

    name: str
    happen: Callable[[Soak, random.Random], Awaitable[None]]
    quick: bool = False


class Soak:
    """See the module.

    Args:
        pool: Name of the work pool, which exists.
        storage: Where checkpoints are.
        checkpoints: The block that says so, as the worker's setting has it.
        notes, notes_url: Who is told by the runs, and where.
        folder: For the workers' own files.
        volumes, environment: What containers need for this machine's Python.
        in_flight: How many runs there are at any time.
        steps, step_s: Of each run.
    """

    def __init__(
        self, sandbox: Sandbox, client: PrefectClient, lab: Lab, storage: S3Server, pool: str, folder: Path, *,
        checkpoints: str, notes: Notes, notes_url: str, volumes: list[str], environment: dict[str, str],
        in_flight: int, steps: int, step_s: float, seed: int,
    ) -> None:  # fmt: skip
        self.sandbox, self.client, self.lab, self.pool, self.folder = sandbox, client, lab, pool, folder
        self.storage, self._checkpoints, self._notes, self._notes_url = storage, checkpoints, notes, notes_url
        self._variables: dict[str, Any] = {"volumes": volumes, "env": environment}
        self._in_flight, self._steps, self._step_s = in_flight, steps, step_s
        self._chance = random.Random(seed)
        self._deployment: UUID
        self._open: dict[UUID, str] = {}  # runs that are not over, and their names
        self._without_image: set[UUID] = set()
        self._promises: dict[UUID, bool] = {}  # whether the deadline of a run may be promised
        self._state_dir = folder / "state"
        self.cordons, self.notice_file = Cordons(self._state_dir), folder / "notice"
        self._workers: list[Process] = []
        self._stopping = False
        self.tally = Tally()

    @property
    def leader(self) -> Process:
        """The worker that leads: the oldest that lives."""
        found = next((worker for worker in self._workers if worker.popen.poll() is None), None)
        if found is None:
            raise SandboxError(f"no worker lives any more; the last one said: {self._workers[-1].output[-3000:]}")
        return found

    def start_worker(self) -> None:
        """One more worker; it stands by if another leads."""
        env = settings(
            driver="swarm",
            docker_host=self.lab.nodes[0].url,
            advertise=self.lab.gateway,
            channel_host="0.0.0.0",
            image=IMAGE,
            checkpoints=self._checkpoints,
            container_volumes="*",
            state_dir=str(self._state_dir),
            notice_file=str(self.notice_file),
        )
        self._workers.append(self.sandbox.start_worker(self.pool, env=env))

    async def run(self, faults: list[Fault], pause_s: float) -> Tally:
        """Let all faults happen, one after another, and wait until the last run is over."""
        self._deployment = await deploy(Path(__file__).with_name("training.py"), "fit", self.pool)
        self.start_worker()
        self.start_worker()
        keeping = asyncio.ensure_future(self._keep())
        try:
            await asyncio.sleep(2 * pause_s)
            for fault in faults:
                before = {name: self._notes.tries(name) for name in self._open.values()}
                begun = time.monotonic()
                await fault.happen(self, self._chance)
                await asyncio.sleep(pause_s)
                again = sum(0 < count < self._notes.tries(name) for name, count in before.items())
                self.tally.times[fault.name] += 1
                self.tally.hit[fault.name] += again
                print(f"{fault.name}: {time.monotonic() - begun:.0f} s, {len(self._open)} in flight", flush=True)
                if keeping.done():
                    break
            self._stopping = True
            await asyncio.wait_for(keeping, _DEADLINE_S)
        except asyncio.TimeoutError:
            left = await self._states(list(self._open))
            self.tally.wrong += [f"{self._open[one]} is {state.name} for ever" for one, state in left.items()]
        finally:
            keeping.cancel()
        return self.tally

    async def submit_without_image(self) -> None:
        """A run whose image nobody can give."""
        variables = {**self._variables, "image": _NO_REGISTRY, "image_pull_policy": "Always"}
        run = await self._submit(variables)
        self._without_image.add(run)

    async def submit_with_deadline(self, deadline: str, *, may_be: bool) -> None:
        """A run that is to be promised its deadline, or refused.

        Args:
            may_be: Whether it may be promised.
        """
        asked = {"deadline": deadline, "deadline_kind": "promise", "time_limit": "20min"}
        run = await self._submit({**self._variables, **_STOPPABLE, **asked})
        self._promises[run] = may_be

    def devices_in_use(self) -> list[str]:
        """Those that runs hold, by the worker's records."""
        found: set[str] = set()
        for file in (self._state_dir / "runs").glob("*/record.json"):
            with suppress(OSError, ValueError, KeyError):  # it is being replaced, or its run is over
                found.update(json.loads(file.read_text())["placement"]["devices"])
        return sorted(found)

    async def one_that_runs(self, chance: random.Random) -> UUID | None:
        """A run whose process has begun, and that may be stopped."""
        states = await self._states([run for run, name in self._open.items() if _may_be_stopped(name)])
        running = sorted((run for run, state in states.items() if state.is_running()), key=str)
        return chance.choice(running) if running else None

    async def _submit(self, variables: dict[str, Any]) -> UUID:
        self.tally.submitted += 1
        name = f"run-{self.tally.submitted}"
        parameters = {"name": name, "notes": self._notes_url, "steps": self._steps, "step_s": self._step_s}
        run = await self.client.create_flow_run_from_deployment(
            self._deployment, parameters=parameters, job_variables=variables, name=name, idempotency_key=name
        )
        self._open[run.id] = name
        return run.id

    async def _keep(self) -> None:
        """Submit a run for each that is over, until told to stop; look at each that is over."""
        while not (self._stopping and not self._open):
            while not self._stopping and len(self._open) < self._in_flight:
                stoppable = _STOPPABLE if _may_be_stopped(f"run-{self.tally.submitted + 1}") else {}
                await self._submit({**self._variables, **stoppable})
            await asyncio.sleep(_LOOK_S)
            for run, state in (await self._states(list(self._open))).items():
                if state.is_final():
                    await self._judge(run, self._open.pop(run), state)

    async def _states(self, ids: list[UUID]) -> dict[UUID, State]:
        return {run.id: run.state for run in await read_runs(self.client, ids) if run.state is not None}

    async def _judge(self, run: UUID, name: str, state: State) -> None:
        if run in self._without_image:
            if not (state.is_crashed() and "registry does not answer" in (state.message or "")):
                self._wrong(f"{name} has no image, and is {state.name}: {state.message}")
            return
        if run in self._promises and state.name == "Refused":
            if self._notes.tries(name):
                self._wrong(f"{name} was refused, and has begun all the same")
            return
        if not self._promises.get(run, True):
            self._wrong(f"the deadline of {name} cannot be met, and it is {state.name}: {state.message}")
            return
        ends, expected = self._notes.ends(name), 1.0
        for step in range(self._steps):
            expected = result_after(expected, step)
        if not state.is_completed():
            self._wrong(f"{name} is {state.name}: {state.message}")
            return
        history = [str(one.name) for one in await self.client.read_flow_run_states(run)]
        if history.count("Completed") != 1:
            self._wrong(f"{name} was Completed {history.count('Completed')} times: {', '.join(history)}")
        elif ends != [repr(expected)]:
            self._wrong(f"{name} is Completed, and said that it ended with {ends}, not once {expected!r}")
        else:
            self.tally.completed += 1

    def _wrong(self, sentence: str) -> None:
        self.tally.wrong.append(sentence)
        print(sentence, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Stop the workers; a frozen one is killed."""
        for worker in self._workers:
            if worker.popen.poll() is None:
                worker.kill()


def _may_be_stopped(name: str) -> bool:
    return int(name.rpartition("-")[2]) % 2 == 0
