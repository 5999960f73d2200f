"""Prefect keeps for how long a run has held its devices, and what it took of them, while it waits."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prefect.exceptions import ObjectNotFound
from prefect.states import Running, Scheduled

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.launch import CONSUMED, SAVED_BEFORE
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.worker.deadlines.promising import PROMISED, promised_before
from prefect_gpu.worker.endings.finalisation import Finalisation
from prefect_gpu.worker.endings.what_it_took import HELD_S, TOOK, held_before, keep_what_it_took, taken_before
from tests.runtime.launches import launched
from tests.worker.prefect_stand_in import OneRun, asking


@pytest.mark.parametrize("limit_s", [None, 100.0])
async def test_what_a_run_has_held_so_far_is_kept_with_it_and_forgotten_at_its_end(limit_s: float | None) -> None:
    prefect = OneRun(Scheduled())
    run = launched(prefect.run_id, request=Request(time_limit_s=limit_s), times={"granted": CLOCK() - 30.0})
    run.record.known["held_s"] = 12.0
    await keep_what_it_took(asking(prefect), run)
    held_s = held_before(prefect.as_read())
    assert held_s == 0.0 if limit_s is None else held_s >= 42.0
    await keep_what_it_took(asking(prefect), run, ends=True)
    assert held_before(prefect.as_read()) == 0.0


@pytest.mark.parametrize("label", ["much", True, None, -5, float("nan"), float("inf")])
def test_a_label_that_somebody_else_has_written_is_no_time(label: object) -> None:
    prefect = OneRun(Scheduled())
    prefect.run.labels = cast(Any, {HELD_S: label})
    assert held_before(prefect.as_read()) == 0.0


async def test_what_a_run_took_is_kept_while_it_waits_and_forgotten_at_its_end() -> None:
    prefect, taken = OneRun(Scheduled()), {"device_s": 12.5, "energy_j": 300.0, "energy_from": "gpu", "cost": 0.01}
    first = launched(prefect.run_id)
    first.record.known[CONSUMED] = {**taken, "unpriced": True}
    assert taken_before(prefect.as_read()) == {}
    await keep_what_it_took(asking(prefect), first)
    again = launched(prefect.run_id)
    again.record.known |= taken_before(prefect.as_read())
    assert again.record.known[CONSUMED] == {**taken, "unpriced": True}
    await keep_what_it_took(asking(prefect), again, ends=True)
    retried = taken_before(prefect.as_read())
    assert retried == {CONSUMED: {}}, "and the worker's own memory of earlier launches is not asked"
    labels = dict(prefect.run.labels or {})
    never_stopped = launched(prefect.run_id)
    never_stopped.record.known |= {**retried, CONSUMED: {"device_s": 1.0}}
    prefect.run.labels = cast(Any, {})
    await keep_what_it_took(asking(prefect), never_stopped, ends=True)
    assert not prefect.run.labels and labels == {TOOK: ""}, "a run that is never stopped costs Prefect no write"


async def test_what_a_run_had_saved_is_known_to_its_next_launch_if_it_was_to_carry_on() -> None:
    for preemptible, saved in ((True, 40), (False, None)):
        prefect = OneRun(Scheduled())
        run = launched(prefect.run_id, request=Request(preemptible=preemptible), progress={"saved_step": 40})
        run.record.known[CONSUMED] = {"device_s": 1.0}
        await keep_what_it_took(asking(prefect), run)
        assert taken_before(prefect.as_read()).get(SAVED_BEFORE) == saved


_NO_COSTS = (*("much", "[1]", "null", 5), '{"device_s": -1, "cost": true, "energy_from": "wind"}')
_BEYOND = ("[" * 100_000, f'{{"cost": {10**400}, "saved_step": {10**400}}}')


@pytest.mark.parametrize("label", [*_NO_COSTS, *_BEYOND], ids=range(7))
def test_a_label_that_somebody_else_has_written_is_no_cost(label: object) -> None:
    prefect = OneRun(Scheduled())
    prefect.run.labels = cast(Any, {TOOK: label})
    taken = taken_before(prefect.as_read())
    assert not taken.get(CONSUMED) and SAVED_BEFORE not in taken


@pytest.mark.parametrize("label", [10**400, -1, "a while", True], ids=range(4))
def test_a_label_that_somebody_else_has_written_is_no_time_and_no_promise(label: object) -> None:
    prefect = OneRun(Scheduled())
    prefect.run.labels = cast(Any, {HELD_S: label, PROMISED: label})
    assert held_before(prefect.as_read()) == 0.0 and promised_before(prefect.as_read()) is None


async def test_that_a_run_was_deleted_is_believed_once() -> None:
    """Each time takes minutes, and the run holds its devices until it is settled."""
    prefect = OneRun(Running())
    run, asked = prefect.launch(), []

    async def gone(*_: object, **__: object) -> None:
        asked.append(1)
        raise ObjectNotFound(LookupError())

    prefect.update_flow_run_labels = prefect.read_flow_run = gone  # type: ignore[assignment,method-assign]
    run.record.known[CONSUMED] = {"device_s": 1.0}
    await keep_what_it_took(asking(prefect), run)
    assert len(asked) == 3, "not at the first word"
    ends = Finalisation(asking(prefect))
    assert await ends.give_way(run, "it was suspended") is None
    assert (await ends.finalise(run, ExitReport(-9), api_was_away=False))[0] == "cancelled"
    await keep_what_it_took(asking(prefect), run, ends=True)
    assert len(asked) == 3 and run.deleted
