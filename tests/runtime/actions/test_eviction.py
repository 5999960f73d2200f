"""Runs that leave their place carry on from their checkpoint, with the result that they would have had undisturbed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks._host.pool import Run, module, notes, virtual_node
from benchmarks._host.waiting import until
from prefect_gpu.estimation.runs import Known
from prefect_gpu.runtime.actions.eviction import Eviction
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import Move, Preempt
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.training import protocol
from tests.runtime.launches import launched
from tests.runtime.orders import OrderedPool

STEPS = 100
PREEMPTIBLE = Request(preemptible=True)
TRAINING = module("tests.runtime.eviction_training")


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[OrderedPool]:
    async with OrderedPool(tmp_path, (virtual_node(2),)) as running:
        yield running


def submit(pool: OrderedPool, run_id: str, *, saves: bool = True) -> Path:
    """Returns the file of its steps; its result lies beside it."""
    file = pool.folder / f"{run_id}.notes"
    told = {"notes": str(file), "result": str(pool.folder / f"{run_id}.result"), "steps": STEPS, "saves": saves}
    pool.submit(Run(run_id, TRAINING, PREEMPTIBLE, {"LEAVING": json.dumps(told)}))
    return file


def result(pool: OrderedPool, run_id: str) -> str:
    return (pool.folder / f"{run_id}.result").read_text()


async def undisturbed(pool: OrderedPool) -> str:
    submit(pool, "undisturbed")
    await pool.over("undisturbed")
    return result(pool, "undisturbed")


async def test_a_run_that_is_moved_goes_on_where_it_saved(pool: OrderedPool) -> None:
    expected = await undisturbed(pool)
    file = submit(pool, "run")
    await until(lambda: len(notes(file)) > 20, "20 steps")
    [before] = {device for _, device, _ in notes(file)}
    target = next(device for device in ("here-0", "here-1") if device != before)
    pool.leave("run", to=target)
    await pool.over("run")
    steps = [step for step, *_ in notes(file)]
    assert {device for _, device, _ in notes(file)} == {before, target}
    assert len({pid for *_, pid in notes(file)}) == 2
    assert steps == list(range(STEPS)), "no step is left out, and none is done twice"
    assert result(pool, "run") == expected
    assert pool.courses["run"].left == ["it is to move"]


async def test_a_run_that_has_to_wait_goes_on_later(pool: OrderedPool) -> None:
    expected = await undisturbed(pool)
    file = submit(pool, "run")
    await until(lambda: len(notes(file)) > 20, "20 steps")
    pool.leave("run")
    await pool.over("run")
    assert [step for step, *_ in notes(file)] == list(range(STEPS))
    assert result(pool, "run") == expected and pool.courses["run"].completed


async def test_what_is_expected_of_a_run_that_carries_on_is_told_beside_what_it_has_trained(pool: OrderedPool) -> None:
    estimates, counted = pool.controller.estimates, list[float]()
    counts = estimates._done_s

    def counting(run_id: str) -> float:
        counted.append(counts(run_id))
        return counted[-1]

    estimates._done_s = counting
    estimates.submitted("run", Known("train", {}))
    file = submit(pool, "run")
    await until(lambda: len(notes(file)) > 20 and pool.trains("run"), "20 steps")
    pool.leave("run")
    await pool.over("run")
    assert len(counted) == 2 and counted[0] == 0.0 < counted[1], "as the scheduler counts it, at each launch"


async def test_two_that_leave_at_once_both_go_on(pool: OrderedPool) -> None:
    first, second = submit(pool, "first"), submit(pool, "second")
    await until(lambda: len(notes(first)) > 10 and len(notes(second)) > 10, "10 steps of both")
    pool.leave("first")
    pool.leave("second")
    await pool.over("first", "second")
    for file in (first, second):
        assert [step for step, *_ in notes(file)] == list(range(STEPS))
    assert result(pool, "first") == result(pool, "second")


async def test_a_run_without_checkpoints_begins_anew_after_a_while(
    pool: OrderedPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool.controller._eviction._patience_s = 0.1
    file = submit(pool, "run", saves=False)
    # What it notes may be ahead of what the controller has heard; one that only prepares is stopped without a word.
    await until(lambda: len(notes(file)) > 5 and pool.trains("run"), "five steps")
    pool.leave("run")
    await pool.over("run")
    steps = [step for step, *_ in notes(file)]
    assert steps.count(0) == 2 and steps[-STEPS:] == list(range(STEPS))
    assert "saved no checkpoint within" in caplog.text


async def test_who_is_to_leave_and_then_to_leave_for_elsewhere_is_waited_for_once() -> None:
    async def instruct(*_: object) -> bool:
        return True

    eviction = Eviction(cast(Any, SimpleNamespace(instruct=instruct)), lambda _: None, logging.getLogger(__name__))
    run = launched("run", Placement("here", ("virtual-0",), ()))
    run.handle, run.phase = cast(Any, object()), protocol.TRAINING
    eviction.begin(run, Preempt("run", "another one is more urgent"))
    first = eviction._timers["run"]
    eviction.begin(run, Move("run", Placement("here", ("virtual-1",), ()), "it is faster there"))
    assert first.cancelled() and not eviction._timers["run"].cancelled()
    eviction.close()


@pytest.mark.parametrize(("said", "is_stopped"), [({}, True), ({"last": True}, False), ({"unasked": True}, False)])
async def test_who_saves_is_stopped_if_it_was_asked_to_and_has_steps_left(
    said: dict[str, bool], is_stopped: bool
) -> None:
    stops: list[float] = []

    async def stop(grace_s: float) -> None:
        stops.append(grace_s)

    async def instruct(*_: object) -> bool:
        return True

    eviction = Eviction(cast(Any, SimpleNamespace(instruct=instruct)), lambda _: None, logging.getLogger(__name__))
    run = launched("run", Placement("here", ("virtual-0",), ()))
    run.handle, run.phase = cast(Any, SimpleNamespace(stop=stop)), protocol.TRAINING
    eviction.begin(run, Preempt("run", "another one is more urgent"))
    eviction.reported(run, protocol.CHECKPOINT, 0.0, {"step": 7, "path": "x", "bytes": 1, "seconds": 0.1, **said})
    await asyncio.sleep(0)
    assert (bool(stops), bool(run.record.leaving)) == (is_stopped, is_stopped)
    eviction.close()


async def test_a_worker_that_dies_meanwhile_leaves_the_run_to_wait(pool: OrderedPool) -> None:
    file = submit(pool, "run")
    await until(lambda: len(notes(file)) > 20, "20 steps")
    leaving, save = asyncio.Event(), pool.controller._eviction._save

    def saved(run: Launch) -> None:
        save(run)
        leaving.set()

    # Between the record and the end of the process are milliseconds: whoever only looks now and then may miss them.
    pool.controller._eviction._save = saved
    pool.leave("run", to="here-1")
    await leaving.wait()
    await pool.controller.close()  # what was begun is left to the next one
    await pool.begin()
    if "run" not in pool.controller.runs and not pool.courses["run"].over.is_set():
        pool.controller.handle(ev.JobSubmitted("run", PREEMPTIBLE, "q", 0.0, 0.0, "run"))
    await pool.over("run")
    assert sorted({step for step, *_ in notes(file)}) == list(range(STEPS))
