"""When does a run waste its devices?"""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.instructions import Launch
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.waste.rule import WasteRule, WasteWatch

RULE = WasteRule(below=0.1, for_s=60.0, up_to="stop")
GB = 2**30


def test_low_use_for_long_is_told_then_shared_then_stopped() -> None:
    watch = WasteWatch(RULE, 0.0)
    watch.trains(100.0)
    watch.uses(0.05, 110.0)
    assert [watch.stage(at) for at in (159.0, 160.0, 219.0, 220.0, 280.0, 999.0)] == [
        None, "tell", "tell", "share", "stop", "stop",
    ]  # fmt: skip
    assert watch.words(280.0, "its devices") == "it has used less than 10 % of its devices for 3 min, 5 % at last"


@pytest.mark.parametrize("up_to, found", [(None, None), ("tell", "tell"), ("share", "share")])
def test_it_goes_as_far_as_the_operator_has_set(up_to: object, found: str | None) -> None:
    rule = WasteRule(below=0.1, for_s=60.0, up_to=up_to)  # type: ignore[arg-type]
    assert WasteWatch(rule, 0.0).stage(9999.0) == found


def test_use_begins_the_time_anew() -> None:
    watch = WasteWatch(RULE, 0.0)
    watch.uses(0.9, 50.0)
    watch.uses(0.0, 55.0)
    assert (watch.stage(109.0), watch.stage(110.0)) == (None, "tell")
    watch.uses(0.1, 115.0)
    assert watch.stage(120.0) is None


def test_steps_count_only_where_the_use_is_not_known() -> None:
    blind, measured = WasteWatch(RULE, 0.0), WasteWatch(RULE, 0.0)
    measured.uses(0.01, 1.0)
    for watch in (blind, measured):
        watch.steps(50.0)
    assert blind.stage(100.0) is None and measured.stage(100.0) == "tell"


def test_who_never_reports_a_step_is_told_so() -> None:
    watch = WasteWatch(RULE, 0.0)
    assert watch.stage(61.0) == "tell"
    assert watch.words(61.0, "its devices") == "it has held its devices for 61 s and has not reported a step yet"
    watch.uses(0.5, 62.0)  # a run that reports nothing, and works
    assert watch.stage(100.0) is None


def test_who_may_not_use_its_devices_is_excused() -> None:
    watch = WasteWatch(RULE, 0.0)
    watch.excused(59.0)
    assert watch.stage(100.0) is None and watch.stage(120.0) == "tell"


@pytest.mark.parametrize("wrong", [{"below": 0.0}, {"below": 1.5}, {"for_s": 0.0}])
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=name):
        WasteRule(**wrong)  # type: ignore[arg-type]


def test_others_join_a_run_that_wastes_its_device_and_nobody_once_it_uses_it_again() -> None:
    scheduler = Scheduler("adaptive")
    node = Node("n", (Device("d", "T4", 16 * GB),), (0, 1, 2, 3))
    scheduler.handle(ev.NodesChanged((node,)), 0.0)
    scheduler.handle(ev.JobSubmitted("sleeps", Request(), "q", 0.0, 0.0, "sleeps"), 0.0)
    scheduler.handle(ev.PhaseEntered("sleeps", Status.TRAINING), 1.0)
    shares = Request(exclusive=False, gpu_memory_bytes=4 * GB)
    told = scheduler.handle(ev.JobSubmitted("small", shares, "q", 2.0, 2.0, "small"), 2.0)
    assert not any(isinstance(one, Launch) for one in told)
    assert not scheduler.handle(ev.WasteNoticed("sleeps", "it sleeps"), 3.0), "it is only told"
    told = scheduler.handle(ev.WasteNoticed("sleeps", "it sleeps", share_bytes=2 * GB), 4.0)
    assert [(one.job, one.placement.devices) for one in told if isinstance(one, Launch)] == [("small", ("d",))]
    scheduler.state.check_invariants()
    words = [words for _, words in scheduler.state.story("sleeps")]
    assert "wastes its devices: it sleeps" in words and "others may share its devices from now on" in words
    scheduler.handle(ev.JobEnded("small", "completed"), 5.0)
    scheduler.handle(ev.WasteEnded("sleeps"), 6.0)
    told = scheduler.handle(ev.JobSubmitted("late", shares, "q", 7.0, 7.0, "late"), 7.0)
    assert not any(isinstance(one, Launch) for one in told)
    assert scheduler.state.story("sleeps")[-1][1] == "uses its devices again"
    scheduler.state.check_invariants()


def test_a_gang_is_told_and_nobody_joins_it() -> None:
    scheduler = Scheduler("adaptive")
    devices = tuple(Device(name, "T4", 16 * GB) for name in ("d", "e"))
    scheduler.handle(ev.NodesChanged((Node("n", devices, (0, 1, 2, 3)),)), 0.0)
    scheduler.handle(ev.JobSubmitted("gang", Request(workers=2), "q", 0.0, 0.0, "gang"), 0.0)
    scheduler.handle(ev.WasteNoticed("gang", "it sleeps", share_bytes=GB), 1.0)
    assert scheduler.state.running["gang"].request.exclusive
