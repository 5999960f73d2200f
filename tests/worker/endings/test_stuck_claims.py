"""A run that is claimed and not launched waits again; nobody else's claim is touched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Pending, Running, Scheduled

from prefect_gpu.worker.endings.stuck_claims import StuckClaims
from prefect_gpu.worker.server.pool import PoolView
from prefect_gpu.worker.server.server_clock import ServerClock
from tests.worker.prefect_stand_in import FOLDER, OneRun, asking


class Found:
    """The looks of a worker at a pool that has one run."""

    def __init__(self, *folders: str) -> None:
        self.prefect = OneRun()
        self.launched = set[str]()
        pool = cast(PoolView, SimpleNamespace(runs_in_state=self._read, clock=ServerClock()))
        self.stuck = StuckClaims(pool, asking(self.prefect), lambda: self.launched)
        for folder in folders:
            self.stuck.note(folder)

    async def _read(self, *types: StateType) -> list[FlowRun]:
        assert types == (StateType.PENDING,)
        read = self.prefect.as_read()
        return [read] if read.state_type is StateType.PENDING else []

    async def looks(self, times: int = 2) -> str:
        """What the run's state is called after so many of them."""
        for _ in range(times):
            await self.stuck.look()
        return self.prefect.shown[1]


async def test_a_run_that_is_claimed_and_not_launched_waits_again_at_the_second_look() -> None:
    found = Found("another-launch-7", FOLDER)
    assert await found.looks(1) == "Pending", "it may be ended just now"
    assert await found.looks(1) == "Scheduled"
    assert "came to nothing" in (found.prefect.states[-1].message or "")


async def test_claims_of_others_and_runs_that_are_launched_are_left_alone() -> None:
    assert await Found("another-launch-7").looks() == "Pending", "another worker's"
    assert await Found().looks() == "Pending", "of an earlier session"
    found = Found(FOLDER)
    found.launched.add(found.prefect.run_id)
    assert await found.looks() == "Pending"
    submitted = Found(FOLDER)
    submitted.prefect.states[:] = [Pending(message="Submitted just now.")]
    assert await submitted.looks() == "Pending"


@pytest.mark.parametrize("change", [Running(), Scheduled(), Pending(message=f"Claimed by worker w ({FOLDER})")])
async def test_what_a_run_has_come_to_meanwhile_counts(change: State) -> None:
    found = Found(FOLDER)
    await found.looks(1)
    found.prefect.states.append(change.model_copy(update={"id": uuid4()}))
    await found.looks(1)
    assert found.prefect.states[-1].name == change.name and found.prefect.shown[1] == change.name


async def test_a_run_that_is_launched_while_it_is_read_again_is_left_to_that() -> None:
    found = Found(FOLDER)
    await found.looks(1)
    found.prefect.after_read = lambda: found.launched.add(found.prefect.run_id)
    assert await found.looks(1) == "Pending"
