"""The soak on a Docker Swarm of this machine."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State

from benchmarks._host.served import settings
from benchmarks.faults.soak import Soak
from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.cordons import Cordons
from tests.radosgw import S3Server

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
        asked = {"deadline": deadline, "deadline_kind": "promise", "time_limit": "20min"}
        run = await self.submit({**self._variables, **_STOPPABLE, **asked})
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
        states = await self.states([run for run, name in self.open.items() if _may_be_stopped(name)])
        running = sorted((run for run, state in states.items() if state.is_running()), key=str)
        return chance.choice(running) if running else None

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
