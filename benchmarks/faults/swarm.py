"""The soak on a Docker Swarm of this machine."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State

from benchmarks._host.served import settings
from benchmarks.faults.soak import Soak
from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.docker_nodes import Lab
from tests.radosgw import S3Server

_NO_REGISTRY = "127.0.0.1:9/nobody/has-this:1"


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

    def start_worker(self) -> None:
        env = settings(
            driver="swarm",
            docker_host=self.lab.nodes[0].url,
            advertise=self.lab.gateway,
            channel_host="0.0.0.0",
            image=IMAGE,
            checkpoints=self._checkpoints,
            container_volumes="*",
            state_dir=str(self.folder / "state"),
        )
        self.workers.append(self.sandbox.start_worker(self.pool, env=env))

    async def settle(self) -> None:
        await asyncio.sleep(self._pause_s)

    async def submit_without_image(self) -> None:
        """A run whose image nobody can give."""
        variables = {**self._variables, "image": _NO_REGISTRY, "image_pull_policy": "Always"}
        self._without_image.add(await self.submit(variables))

    def otherwise(self, run: UUID, name: str, state: State) -> bool:
        if run not in self._without_image:
            return False
        if not (state.is_crashed() and "registry does not answer" in (state.message or "")):
            self.wrong(f"{name} has no image, and is {state.name}: {state.message}")
        return True
