"""What is kept for looking at, as the controller tells it: from the controller's own stand-ins, and by hand."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.activity_log import MOST_SPANS, NOT_STARTED, ActivityLog
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.overview import details, overview
from prefect_gpu.scheduling.forecast import Outlook
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import Finish, Hold, OpenGate, SetCores, SetShare
from prefect_gpu.training import protocol
from tests.runtime.launches import launched
from tests.runtime.stand_ins import MemoryHandle
from tests.runtime.test_controller import Bench, running, until


def a_run(run_id: str = "a", behind: str | None = None) -> Launch:
    known = {"flow_name": "train"}
    return launched(run_id, name=f"name of {run_id}", gated=bool(behind), behind=behind, known=known)


def enter(activity: ActivityLog, run: Launch, phase: str, at: float, **data: Any) -> None:
    run.enter(phase, at, data)
    activity.reported(run, protocol.PHASE, at, data)


def row(activity: ActivityLog, run_id: str = "a") -> dict[str, Any]:
    [found] = [entry.as_row() for entry in activity.since(0) if entry.as_row()["id"] == run_id]
    return found


def test_a_run_passes_its_phases() -> None:
    activity, run = ActivityLog(), a_run()
    activity.granted(run, 10.0)
    enter(activity, run, protocol.PREPARING, 11.0)
    enter(activity, run, protocol.TRAINING, 15.0)
    assert row(activity)["spans"] == [["launching", 10.0, 11.0], ["preparing", 11.0, 15.0], ["training", 15.0, None]]
    enter(activity, run, protocol.SAVING, 20.0)
    enter(activity, run, protocol.FINISHED, 21.0)
    activity.ended(run, 22.0)
    activity.over(run, 22.0, "completed", "fine")
    told = row(activity)
    assert told["spans"][3:] == [["saving", 20.0, 21.0], ["ending", 21.0, 22.0]]
    assert told["outcome"] == "completed" and told["phase"] is None and told["ended"] == 22.0


def test_a_run_whose_process_is_gone_is_ending_until_prefect_knows() -> None:
    activity, run = ActivityLog(), a_run()
    activity.granted(run, 10.0)
    activity.ended(run, 12.0)
    assert row(activity)["phase"] == "ending" and row(activity)["spans"] == [["launching", 10.0, 12.0]]


def test_a_run_that_trains_thousands_of_times_stays_small() -> None:
    """Its first spans are joined, without a gap; the newest are all there."""
    activity, run = ActivityLog(), a_run()
    activity.granted(run, 0.0)
    for at in range(1, 9_998, 3):
        enter(activity, run, protocol.PREPARING, at)
        enter(activity, run, protocol.TRAINING, at + 1)
        enter(activity, run, protocol.SAVING, at + 2)
        activity.adjusted(run, SetShare("a", at % 2 / 2, "a test"), at)
    told = row(activity)
    spans = told["spans"]
    assert len(spans) == MOST_SPANS and len(told["weights"]) == MOST_SPANS
    assert spans[0] == ["launching", 0.0, 1] and spans[-1] == ["saving", 9_999, None] and spans[1][1] == 1
    assert all(one[2] == other[1] for one, other in itertools.pairwise(spans))


def test_a_gate_is_waited_at_and_opened() -> None:
    activity, first, second = ActivityLog(), a_run("a"), a_run("b", behind="a")
    activity.granted(first, 1.0)
    activity.granted(second, 2.0)
    enter(activity, second, protocol.PREPARING, 3.0)
    enter(activity, second, protocol.PREPARING, 4.0, waiting=True)
    told = row(activity, "b")
    assert told["behind"] == "name of a" and told["gated"] and told["phase"] == "gate"
    second.record.behind = None
    activity.adjusted(second, OpenGate("b", "it saves"), 6.0)
    enter(activity, second, protocol.TRAINING, 6.1)
    told = row(activity, "b")
    assert told["spans"][2:] == [["gate", 4.0, 6.1], ["training", 6.1, None]]
    assert told["gate_opened"] == 6.0 and not told["gated"] and told["behind"] == "name of a"


def test_weights_cores_and_early_ends_are_kept_with_their_times() -> None:
    activity, run = ActivityLog(), a_run()
    activity.granted(run, 1.0)
    activity.adjusted(run, SetShare("a", 0.25, "it has converged"), 2.0)
    run.record.placement = Placement("here", ("virtual-0",), (0, 1, 2))
    activity.adjusted(run, SetCores("a", (0, 1, 2), "it is slow"), 3.0)
    activity.adjusted(run, Finish("a", "enough"), 4.0)
    told = row(activity)
    assert told["weights"] == [[2.0, 0.25]] and told["cores"] == [[1.0, 1], [3.0, 3]] and told["finishing"] == "enough"


def test_an_adopted_run_brings_its_past_along() -> None:
    activity, run = ActivityLog(), a_run()
    run.record.times = {
        "submitted": 0.0,
        "granted": 1.0,
        "launched": 1.5,
        "preparing": 2.0,
        "waiting": 3.0,
        "training": 4.0,
    }
    run.record.weight = 0.5
    activity.adopted(run, 9.0)
    told = row(activity)
    assert [span[0] for span in told["spans"]] == ["launching", "preparing", "gate", "training"]
    assert told["spans"][-1] == ["training", 4.0, None] and told["weights"] == [[9.0, 0.5]]


def test_all_instances_of_a_gang_are_told() -> None:
    activity, run = ActivityLog(), a_run()
    others = (Placement("n2", ("n2/g0",), (0, 1)), Placement("n2", (), (2,)))
    run.record.placement = Placement("n1", ("n1/g0",), (0, 1), others=others, servers=1)
    activity.granted(run, 1.0)
    told = row(activity)
    assert told["node"] == "n1" and told["devices"] == ["n1/g0", "n2/g0"] and told["cores"] == [[1.0, 5]]
    assert told["parts"] == [
        {"node": "n1", "devices": ["n1/g0"], "role": "worker"},
        {"node": "n2", "devices": ["n2/g0"], "role": "worker"},
        {"node": "n2", "devices": [], "role": "server"},
    ]
    alone = a_run("b")
    activity.granted(alone, 1.0)
    assert row(activity, "b")["parts"] == []


def test_only_what_changed_is_told_again() -> None:
    activity, first, second = ActivityLog(), a_run("a"), a_run("b")
    activity.granted(first, 1.0)
    activity.granted(second, 1.0)
    seen = activity.version
    assert not list(activity.since(seen))
    activity.reported(second, protocol.USAGE, 2.0, {})
    assert not list(activity.since(seen)), "nothing of it is shown"
    activity.reported(second, protocol.PROGRESS, 2.0, {})
    assert [entry.number for entry in activity.since(seen)] == [2]


def test_the_oldest_finished_go_and_nothing_is_held_on_to() -> None:
    activity, stays = ActivityLog(most=3), a_run("stays")
    activity.granted(stays, 0.0)
    gone = []
    for number in range(6):
        run = a_run(str(number))
        run.company.append(stays)
        run.losses = [(step, 1.0 / step) for step in range(1, 400)]
        activity.granted(run, 1.0)
        activity.over(run, 2.0, "completed", "")
        gone.append(weakref.ref(run))
        del run
    gc.collect()
    assert [entry.as_row()["id"] for entry in activity.since(0)] == ["stays", "3", "4", "5"]
    assert not any(ref() for ref in gone)
    kept = activity.entry(7)
    assert kept is not None and len(kept.losses) == 100 and kept.losses[0][0] == 1 and kept.losses[-1][0] == 399
    assert kept.as_row()["neighbours"] == ["name of stays"] and activity.entry(2) is None


def test_a_second_word_about_a_launch_changes_nothing_and_the_next_launch_is_another() -> None:
    activity, run = ActivityLog(), a_run()
    activity.granted(run, 1.0)
    activity.over(run, 2.0, "failed", "no luck")
    activity.released(run, 3.0, False)
    again = a_run()
    activity.granted(again, 4.0)
    activity.released(run, 5.0, False)
    first, second = (entry.as_row() for entry in activity.since(0))
    assert (first["outcome"], first["ended"]) == ("failed", 2.0) and second["outcome"] is None


async def test_the_controller_tells_everything_from_the_queue_to_the_end(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handles = [await bench.launch(job) for job in "ab"]
        bench.submit("c")
        bench.submit("d", due=5000.0)
        expected = {"c": Outlook(1100.0, 1200.0, "")}
        told = overview(bench.controller, bench.now, expected=expected.get)
        json.dumps(told)
        assert [device["id"] for device in told["devices"]] == ["GPU-1", "virtual-0"] and told["queued"] == 2
        assert [(run["name"], run["phase"]) for run in told["runs"]] == [
            ("name of a", "launching"),
            ("name of b", "launching"),
        ]
        c, d = told["queue"]
        assert c["name"] == "name of c" and c["expected_start"] == 1100.0 and c["code"] == "devices" and c["reason"]
        assert d["due"] == 5000.0
        seen = told["version"]
        bench.now = 1010.0
        handles[0].end(0)
        await until(lambda: "launched c" in bench.host.said)
        await until(lambda: "a" not in bench.controller.runs)
        told = overview(bench.controller, bench.now, since=seen)
        assert {run["id"]: run["outcome"] for run in told["runs"]} == {"a": "completed", "c": None}
        [story] = [details(bench.controller, run["n"], bench.now) for run in told["runs"] if run["id"] == "a"]
        assert story is not None and story["story"][0][1] == "submitted"
        assert story["story"][-1][1] == "ended: its process ended"
        assert details(bench.controller, 99, bench.now) is None
        await end_all(bench)


async def test_a_launch_that_fails_is_told_as_not_started(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.prepare_errors = [LaunchError("not now")]
        bench.submit("a")
        await until(lambda: bench.host.free_again)
        [told] = overview(bench.controller, bench.now)["runs"]
        assert told["outcome"] == NOT_STARTED


def test_a_run_that_is_taken_back_again_and_again_takes_no_room_from_those_that_have_finished() -> None:
    activity = ActivityLog(most=3)
    for at, outcome in enumerate(("completed", "failed", *[None] * 9)):
        run = a_run(outcome or "put off")
        activity.granted(run, float(at))
        activity.over(run, float(at), outcome, "")
    told = [(entry.as_row()["outcome"], entry.ended) for entry in activity.since(0)]
    assert told == [("completed", 0.0), ("failed", 1.0), (NOT_STARTED, 10.0)]


async def end_all(bench: Bench) -> None:
    for run in list(bench.controller.runs.values()):
        if isinstance(run.handle, MemoryHandle):
            run.handle.end(0)
    await asyncio.wait_for(bench.controller.wait_idle(), 10)


def test_a_hold_is_forgotten_when_nobody_waits_for_it() -> None:
    activity = ActivityLog()
    activity.held(Hold("a", "devices", "all are in use"))
    activity.forget_holds({"a"})
    assert activity.hold_of("a") is not None
    activity.forget_holds(set())
    assert activity.hold_of("a") is None
