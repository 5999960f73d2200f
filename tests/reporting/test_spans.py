"""The geometry of a timeline."""

from __future__ import annotations

import pytest

from prefect_gpu.reporting.spans import Lane, Outage, build_timeline, phase_spans, waiting_counts
from tests.reporting.rows import BEGIN, a_gang, finished


def test_the_phases_of_a_run_follow_each_other_from_the_grant_to_the_end() -> None:
    spans = phase_spans(finished("a", 10))
    assert [(span.phase, span.start - BEGIN, span.end - BEGIN) for span in spans] == [
        ("preparing", 10, 11), ("training", 11, 15), ("saving", 15, 16), ("ending", 16, 16.5),
    ]  # fmt: skip


def test_a_run_that_reports_no_phases_is_running_all_the_time() -> None:
    [span] = phase_spans(finished("plain", 0, prepared_s=None, trained_s=None, saved_s=None))
    assert (span.phase, span.seconds) == ("running", 6.5)


def test_a_run_that_died_while_training_ends_there() -> None:
    spans = phase_spans(finished("a", 0, trained_s=3.0, saved_s=None, ended_at=BEGIN + 4, outcome="crashed"))
    assert [span.phase for span in spans] == ["preparing", "training"] and spans[-1].end == BEGIN + 4


def test_phases_are_cut_at_the_end_where_clocks_disagree() -> None:
    spans = phase_spans(finished("a", 0, ended_at=BEGIN + 3))
    assert [(span.phase, span.end - BEGIN) for span in spans] == [("preparing", 1), ("training", 3)]


def test_a_run_that_ended_before_its_grant_takes_no_time() -> None:
    assert sum(span.seconds for span in phase_spans(finished("a", 0, ended_at=BEGIN - 1))) == 0
    assert build_timeline([finished("a", 0, ended_at=BEGIN - 1)]) is not None


def test_a_run_without_a_grant_is_not_shown() -> None:
    assert phase_spans(finished("a", 0, granted_at=None)) == ()
    assert build_timeline([finished("a", 0, granted_at=None)]) is None


def test_each_device_has_a_lane_and_runs_one_after_the_other_share_a_track() -> None:
    rows = [finished("c", 20), finished("a", 0), finished("b", 1, on=("virtual-1",))]
    timeline = build_timeline(rows)
    assert timeline is not None
    shown = {lane.label: [[bar.row.run_name for bar in track] for track in lane.tracks] for lane in timeline.lanes}
    assert shown == {"virtual-0": [["a", "c"]], "virtual-1": [["b"]]}
    assert (timeline.start, timeline.end) == (BEGIN - 2, BEGIN + 26.5)


def test_runs_that_share_a_device_lie_in_tracks_of_their_own() -> None:
    timeline = build_timeline([finished("a", 0), finished("b", 3), finished("c", 7)])
    assert timeline is not None
    assert [[bar.row.run_name for bar in track] for track in timeline.lanes[0].tracks] == [["a", "c"], ["b"]]


def test_a_run_on_two_devices_is_in_both_lanes_and_counts_once() -> None:
    timeline = build_timeline([finished("a", 0, on=("GPU-1", "GPU-2"))])
    assert timeline is not None
    assert [lane.device for lane in timeline.lanes] == ["GPU-1", "GPU-2"] and timeline.run_count == 1


def test_devices_of_the_same_name_on_two_nodes_are_two_lanes() -> None:
    timeline = build_timeline([finished("a", 0), finished("b", 0, node="other")])
    assert timeline is not None and [lane.node for lane in timeline.lanes] == ["box", "other"]


def test_runs_without_a_device_are_shown_on_request_and_last() -> None:
    rows = [finished("light", 0, on=()), finished("a", 0)]
    some, every = build_timeline(rows), build_timeline(rows, without_device=True)
    assert some is not None and [lane.label for lane in some.lanes] == ["virtual-0"]
    assert every is not None and [lane.label for lane in every.lanes] == ["virtual-0", "no device"]


def test_a_virtual_device_always_says_so() -> None:
    assert Lane("virtual-0", virtual=True).label == "virtual-0"
    assert Lane("card", virtual=True).label == "card (virtual)"
    assert Lane("GPU-8f").label == "GPU-8f"


def test_how_many_wait() -> None:
    rows = [finished("a", 0, waited_s=0.0), finished("b", 5, waited_s=4.0), finished("c", 8, waited_s=5.0)]
    rows.append(finished("light", 9, on=(), waited_s=9.0))
    assert [(at - BEGIN, count) for at, count in waiting_counts(rows)] == [(1, 1), (3, 2), (5, 1), (8, 0)]


def test_the_share_of_a_phase_counts_no_moment_twice() -> None:
    timeline = build_timeline([finished("a", 0), finished("b", 2)])
    assert timeline is not None
    [lane] = timeline.lanes
    assert lane.share(["training"], BEGIN, BEGIN + 10) == pytest.approx(0.6)  # 1 to 5 and 3 to 7
    assert lane.share(["training"], BEGIN + 3, BEGIN + 3) == 0.0


def test_a_gang_on_two_nodes_is_in_the_lanes_of_both_and_waits_once() -> None:
    row = a_gang("gang", 0, ("n1", 1), ("n2", 1), ("n1", 0))
    timeline = build_timeline([row])
    assert timeline is not None
    assert [(lane.node, lane.label) for lane in timeline.lanes] == [("n1", "virtual-0"), ("n2", "virtual-0")]
    assert timeline.nodes == ("n1", "n2") and timeline.run_count == 1 and timeline.most_waiting == 1
    assert sum(bar.end - bar.start for bar in timeline.bars) == pytest.approx(2 * 6.5), "both devices' seconds count"
    timeline = build_timeline([row], without_device=True)
    assert timeline is not None
    lanes = [(lane.node, lane.label) for lane in timeline.lanes]
    assert lanes == [("n1", "virtual-0"), ("n1", "no device"), ("n2", "virtual-0")], "with its parameter server"


def test_outages_are_those_of_nodes_that_are_shown() -> None:
    outages = [Outage("box", BEGIN + 5, None), Outage("elsewhere", BEGIN), Outage("box", BEGIN + 1, BEGIN + 2)]
    timeline = build_timeline([finished("a", 0)], outages=outages)
    assert timeline is not None
    assert timeline.outages == (outages[2], outages[0])
