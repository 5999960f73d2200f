"""The soak on a Docker Swarm of this machine."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State

from benchmarks._host.served import settings
from benchmarks.faults.soak import Soak
from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.worker.server.states import GAVE_WAY
from tests.radosgw import S3Server

_TRAINING = "Training"  # as Prefect shows it
_TRAINS_S = 300.0  # until a container trains: on a busy machine, after a fault that stopped all of them
_NO_REGISTRY = "127.0.0.1:9/nobody/has-this:1"
# Every second run may be stopped, and would be told that its time is over if that was counted wrongly.
_STOPPABLE = {"preemptible": True, "time_limit": "2h"}


class SwarmSoak(Soak):
    """See :class:`.Soak`. A second worker stands by.

    Args:
        storage: Where checkpoints are.
        checkpoints: The block that says so, as the worker's setting has it.
        pause_s: From one fault to the next.
    """

    def __init__(self, *args: Any, lab: Lab, storage: S3Server, checkpoints: str, pause_s: float, **more: Any) -> None:
        super().__init__(*args, workers=2, **more)
        self.lab, self.storage, self._checkpoints, self._pause_s = lab, storage, checkpoints, pause_s
        self._without_image: set[UUID] = set()
        self._promises: dict[UUID, bool] = {}  # whether the deadline of a run may be promised
        self._state_dir = self.folder / "state"
        self.cordons, self.notice_file = Cordons(self._state_dir), self.folder / "notice"

    def start_worker(self) -> None:
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
        self.workers.append(self.sandbox.start_worker(self.pool, env=env))

    async def settle(self) -> None:
        await asyncio.sleep(self._pause_s)

    async def submit_without_image(self) -> None:
        """A run whose image nobody can give."""
        variables = {**self._variables, "image": _NO_REGISTRY, "image_pull_policy": "Always"}
        self._without_image.add(await self.submit(variables))

    def variables_of(self, name: str) -> dict[str, Any]:
        return {**self._variables, **(_STOPPABLE if _may_be_stopped(name) else {})}

    async def submit_with_deadline(self, deadline: str, *, may_be: bool) -> None:
        """A run that is to be promised its deadline, or refused.

        Args:
            may_be: Whether it may be promised.
        """
        asked = {"deadline": deadline, "deadline_kind": "promise", "time_limit": "1h"}
        run = await self.submit({**self._variables, **_STOPPABLE, **asked})
        self._promises[run] = may_be

    async def trainings(self) -> dict[UUID, list[str]]:
        """Runs that may be stopped and have half of their training before them; waits for a while until there is one.

        One that ends by itself as a fault comes would count as one that the fault did not stop.

        Returns:
            By run, its devices.
        """
        until = time.monotonic() + _TRAINS_S
        while True:
            states = await self.states([run for run, name in self.open.items() if _may_be_stopped(name)])
            training = sorted((run for run, state in states.items() if state.name == _TRAINING), key=str)
            found = {run: devices for run in training if (devices := self._devices_of(run))}
            if not found and time.monotonic() > until:
                print(f"no run that may be stopped has trained for {_TRAINS_S:.0f} s", file=sys.stderr, flush=True)
            if found or time.monotonic() > until:
                return found
            await asyncio.sleep(1.0)

    async def one_that_trains(self, chance: random.Random) -> UUID | None:
        """Any of them."""
        found = await self.trainings()
        return chance.choice(list(found)) if found else None

    def _devices_of(self, run: UUID) -> list[str]:
        """By the worker's record of its launch; none if it has trained for more than half of its time."""
        for file in (self._state_dir / "runs").glob(f"{run}-*/record.json"):
            with suppress(OSError, ValueError, KeyError):  # it is being replaced, or its run is over
                record = json.loads(file.read_text())
                trained = record["progress"].get("first_step", 0) + time.time() - record["times"]["training"]
                if trained <= self._steps * self._step_s / 2:
                    return list(record["placement"]["devices"])
        return []

    async def gave_way(self, runs: Iterable[UUID], since: datetime, within_s: float) -> int:
        """How many of these runs the pool has stopped since then, to carry on elsewhere, by what Prefect has of them.

        Waits until each is stopped or over, for so long at most.
        """
        left, stopped, until = set(runs), 0, time.monotonic() + within_s
        while left and time.monotonic() < until:
            await asyncio.sleep(1.0)
            for run in tuple(left):
                states = [one for one in await self.client.read_flow_run_states(run) if one.timestamp > since]
                if any((one.message or "").startswith(GAVE_WAY) for one in states):
                    left.discard(run)
                    stopped += 1
                elif any(one.is_final() for one in states):
                    left.discard(run)
        for run in left:
            print(f"{run} was neither stopped within {within_s:.0f} s nor over", file=sys.stderr, flush=True)
        return stopped

    def otherwise(self, run: UUID, name: str, state: State) -> bool:
        if run in self._without_image:
            if not (state.is_crashed() and "registry does not answer" in (state.message or "")):
                self.wrong(f"{name} has no image, and is {state.name}: {state.message}")
            return True
        if run in self._promises and state.name == "Refused":
            if self._notes.tries(name):
                self.wrong(f"{name} was refused, and has begun all the same")
            return True
        if not self._promises.get(run, True):
            self.wrong(f"the deadline of {name} cannot be met, and it is {state.name}: {state.message}")
            return True
        return False


def _may_be_stopped(name: str) -> bool:
    return int(name.rpartition("-")[2]) % 2 == 0
