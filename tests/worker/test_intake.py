"""What is read of a run may be older than what the worker knows by the time that it is taken in."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from prefect.client.orchestration import PrefectClient
from prefect.states import Cancelled, Cancelling, Completed, Running

from prefect_gpu.runtime.learning.estimates import Estimates
from prefect_gpu.worker.intake import Intake
from prefect_gpu.worker.settle import Settlement
from tests.worker.prefect_stand_in import HOST_PREFIX, LOGGER, OneRun


def an_intake(prefect: OneRun) -> Intake:
    async def cancel(run: object) -> None:
        raise AssertionError("it is not launched")

    worker: Any = SimpleNamespace(client=prefect, name="w")
    view: Any = None
    settlement = Settlement(cast(PrefectClient, prefect), LOGGER)
    intake = Intake(
        worker, view, settlement, cancel=cancel, host_prefix=HOST_PREFIX, lane=asyncio.Lock(), logger=LOGGER
    )
    scheduler = SimpleNamespace(state=SimpleNamespace(jobs={}))
    intake.controller = cast(Any, SimpleNamespace(runs={}, scheduler=scheduler, estimates=Estimates()))
    return intake


async def test_a_cancellation_that_nobody_else_can_finish_is_finished() -> None:
    prefect = OneRun(Running(), Cancelling())
    await an_intake(prefect)._take_in(prefect.as_read(), time.time())
    assert prefect.shown[0] == "cancelled"


async def test_a_run_that_was_settled_since_it_was_read_keeps_its_end() -> None:
    prefect = OneRun(Running(), Cancelling())
    read, read_at = prefect.as_read(), time.time()
    intake = an_intake(prefect)
    prefect.states += [Cancelled(), Running(), Completed()]  # run again by its user, and completed
    intake.settled(prefect.run_id)
    await intake._take_in(read, read_at)
    assert prefect.shown[0] == "completed"
