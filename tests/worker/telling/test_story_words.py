"""The story of a run, in words."""

from __future__ import annotations

from datetime import timezone

from prefect_gpu.runtime.launch.launch import WAITING, Launch
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.worker.telling.story_words import story_markdown
from tests.runtime.launches import launched


def a_run(**times: float) -> Launch:
    place = Placement("here", ("virtual-0",), (0, 1))
    return launched("run-id", place, times={"submitted": 1000.0, **times})


def test_times_are_relative_to_the_submission_and_in_order() -> None:
    story = [(1000.5, "submitted"), (1012.25, "granted virtual-0: it comes next"), (1200.0, "is training")]
    told = story_markdown(a_run(), story, now=1300.0, zone=timezone.utc)
    assert told.startswith("Submitted 1970-01-01 00:16:40 UTC. It has 2 cores.\n")
    rows = [line for line in told.splitlines() if line.startswith("| +")]
    assert rows == [
        "| +0.50 s | submitted |",
        "| +12.25 s | granted virtual-0: it comes next |",
        "| +3 min 20 s | is training |",
    ]


def test_gate_idle_time_and_giving_way_are_summed_up() -> None:
    run = a_run(**{WAITING: 1010.0, "training": 1014.0})
    run.record.gated, run.device_idle_s = True, 0.03
    run.weighed(0.25, 1020.0)
    run.weighed(1.0, 1025.5)
    told = story_markdown(run, [(1000.0, "submitted")], now=1100.0, page="http://here:1")
    assert (
        "waited 4.00 s at its gate" in told
        and "idle for 0.03 s" in told
        and "gave way to other runs for 5.50 s" in told
    )
    assert "(http://here:1/#run=run-id)" in told


def test_a_run_that_still_waits_at_its_gate_is_told_how_long() -> None:
    run = a_run(**{WAITING: 1010.0})
    run.record.gated = True
    assert "waited 7.00 s at its gate" in story_markdown(run, [(1000.0, "submitted")], now=1017.0)


def test_no_story_is_no_artifact_and_a_long_one_is_cut_in_the_middle() -> None:
    assert story_markdown(a_run(), [], now=1.0) == ""
    told = story_markdown(a_run(), [(1000.0 + n, f"event {n}") for n in range(500)], now=1.0)
    assert "event 0 " in told and "event 499 " in told and "event 250 " not in told and "| … | 440 more |" in told


def test_what_people_call_runs_cannot_break_the_table() -> None:
    told = story_markdown(a_run(), [(1000.0, "behind a|b <script>\n| x")], now=1.0)
    assert "| +0.00 s | behind a\\|b &lt;script> \\| x |" in told
