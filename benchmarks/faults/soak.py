"""A pool on a cluster of this machine that always has so many runs in flight, while faults happen to it.

Whatever the cluster is: a subclass says how a worker starts on it, and how long a fault is given to be over.
"""

from __future__ import annotations

import abc
import asyncio
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State

from benchmarks._host.served import deploy, read_runs
from benchmarks.faults.notes import Notes
from benchmarks.faults.training import result_after
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError

_LOOK_S = 1.0
_DEADLINE_S = 900.0  # for the last runs, once no fault happens any more


@dataclass
class Tally:
    """What became of the runs.

    Attributes:
        completed: How many ended Completed once, with the right result, and said so once.
        submitted: How many were submitted.
        wrong: What was wrong, a sentence each.
        hit: By fault, how many runs that had begun were started again until the next one.
        stopped: By fault that is meant to stop runs, how many it stopped.
        missed: By such a fault, how often it stopped none.
        times: By fault, how often it happened.
        crashed_for_a_moment: How often Prefect showed a run that completed as crashed in between.
    """

    completed: int = 0
    submitted: int = 0
    wrong: list[str] = field(default_factory=list)
    hit: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    crashed_for_a_moment: int = 0


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: For people.
        happen: Does it, waits, and undoes it. One that is meant to stop runs returns how many it has stopped: they may
            be started again only after the next fault has begun.
        quick: Whether that takes no time.
    """

    name: str
    happen: Callable[[Any, random.Random], Awaitable[int | None]]
    quick: bool = False


class Soak(abc.ABC):
    """See the module.

    Args:
        pool: Name of the work pool, which exists.
        notes, notes_url: Who is told by the runs, and where.
        folder: For the workers' own files.
        variables: Job variables of each run.
        in_flight: How many runs there are at any time.
        steps, step_s: Of each run.
        workers: How many workers begin; all but the first stand by.
        crashed_s: A run that Prefect's engine has called crashed, as its process was told to end, may go on for so
            long after that.
    """

    def __init__(
        self, sandbox: Sandbox, client: PrefectClient, pool: str, folder: Path, *,
        notes: Notes, notes_url: str, variables: dict[str, Any], in_flight: int, steps: int, step_s: float, seed: int,
        workers: int, crashed_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.sandbox, self.client, self.pool, self.folder = sandbox, client, pool, folder
        self._notes, self._notes_url, self._variables = notes, notes_url, variables
        self.in_flight, self._steps, self._step_s = in_flight, steps, step_s
        self._chance = random.Random(seed)
        self._deployment: UUID
        self.open: dict[UUID, str] = {}  # runs that are not over, and their names
        self.workers: list[Process] = []
        self._begin_with, self._crashed_s = workers, crashed_s
        self._crashed_at: dict[UUID, float] = {}
        self._stopping = False
        self.tally = Tally()

    @property
    def leader(self) -> Process:
        """The worker that leads: the oldest that lives."""
        found = next((worker for worker in self.workers if worker.popen.poll() is None), None)
        if found is None:
            raise SandboxError(f"no worker lives any more; the last one said: {self.workers[-1].output[-3000:]}")
        return found

    @abc.abstractmethod
    def start_worker(self) -> None:
        """One more worker; it stands by if another leads."""

    @abc.abstractmethod
    async def settle(self) -> None:
        """Give the cluster the time that it takes to come to rest after a fault."""

    async def run(self, faults: list[Fault], within_s: float = math.inf) -> Tally:
        """Let all faults happen, one after another, and wait until the last run is over.

        Args:
            within_s: After so long, no other fault begins.
        """
        end = time.monotonic() + within_s
        self._deployment = await deploy(Path(__file__).with_name("training.py"), "fit", self.pool)
        for _ in range(self._begin_with):
            self.start_worker()
        keeping = asyncio.ensure_future(self._keep())
        try:
            await self.settle()
            for fault in faults:
                before = {name: self._notes.tries(name) for name in self.open.values()}
                begun = time.monotonic()
                stopped = await fault.happen(self, self._chance)
                await self.settle()
                again = sum(0 < count < self._notes.tries(name) for name, count in before.items())
                self.tally.times[fault.name] += 1
                self.tally.hit[fault.name] += again
                what = "" if stopped is None else f", {stopped} stopped"
                if stopped is not None:
                    self.tally.stopped[fault.name] += stopped
                    self.tally.missed[fault.name] += not stopped
                print(
                    f"{fault.name}: {time.monotonic() - begun:.0f} s, {len(self.open)} in flight{what}",
                    file=sys.stderr,
                    flush=True,
                )
                if keeping.done() or time.monotonic() > end:
                    break
            self._stopping = True
            await asyncio.wait_for(keeping, _DEADLINE_S)
        except asyncio.TimeoutError:
            left = await self.states(list(self.open))
            self.tally.wrong += [f"{self.open[one]} is {state.name} for ever" for one, state in left.items()]
        finally:
            keeping.cancel()
        return self.tally

    async def submit(self, variables: dict[str, Any]) -> UUID:
        """One more run."""
        self.tally.submitted += 1
        name = f"run-{self.tally.submitted}"
        parameters = {"name": name, "notes": self._notes_url, "steps": self._steps, "step_s": self._step_s}
        run = await self.client.create_flow_run_from_deployment(
            self._deployment, parameters=parameters, job_variables=variables, name=name, idempotency_key=name
        )
        self.open[run.id] = name
        return run.id

    async def _keep(self) -> None:
        """Submit a run for each that is over, until told to stop; look at each that is over."""
        while not (self._stopping and not self.open):
            while not self._stopping and len(self.open) < self.in_flight:
                await self.submit(self.variables_of(f"run-{self.tally.submitted + 1}"))
            await asyncio.sleep(_LOOK_S)
            for run, state in (await self.states(list(self.open))).items():
                if not state.is_crashed():
                    self._crashed_at.pop(run, None)
                elif time.monotonic() - self._crashed_at.setdefault(run, time.monotonic()) < self._crashed_s:
                    continue
                if state.is_final():
                    await self._judge(run, self.open.pop(run), state)

    def variables_of(self, name: str) -> dict[str, Any]:
        """Job variables of the next run, which has this name."""
        return self._variables

    async def states(self, ids: list[UUID]) -> dict[UUID, State]:
        """Prefect's states of these runs."""
        return {run.id: run.state for run in await read_runs(self.client, ids) if run.state is not None}

    async def _judge(self, run: UUID, name: str, state: State) -> None:
        if self.otherwise(run, name, state):
            return
        ends, expected = self._notes.ends(name), 1.0
        for step in range(self._steps):
            expected = result_after(expected, step)
        if not state.is_completed():
            self.wrong(f"{name} is {state.name}: {state.message}")
            return
        history = [str(one.name) for one in await self.client.read_flow_run_states(run)]
        if history.count("Completed") != 1:
            self.wrong(f"{name} was Completed {history.count('Completed')} times: {', '.join(history)}")
        elif ends != [repr(expected)]:
            self.wrong(f"{name} is Completed, and said that it ended with {ends}, not once {expected!r}")
        else:
            self.tally.completed += 1
            self.tally.crashed_for_a_moment += history.count("Crashed")

    def otherwise(self, run: UUID, name: str, state: State) -> bool:
        """Whether a run is of a kind that is not to be Completed; if so, its end is judged here."""
        return False

    def wrong(self, sentence: str) -> None:
        """What should not have been."""
        self.tally.wrong.append(sentence)
        print(sentence, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Stop the workers; a frozen one is killed."""
        for worker in self.workers:
            if worker.popen.poll() is None:
                worker.kill()
