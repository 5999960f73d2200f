"""Phase times, losses and usage of one run, and the row that they end in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.estimation.runs import MARKS
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RecordStore
from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.storage.row import HistoryRow, Outcome
from prefect_gpu.training import protocol
from tests.runtime.launches import launched

GRANTED, ENDED = 100.0, 200.0
P, T, S, F = "preparing", "training", "saving", "finished"


def a_launch() -> Launch:
    times = {"submitted": 90.0, "granted": GRANTED, "launched": 101.0}
    return launched(place=Placement("here", ("d",), (0,)), times=times)


def row(run: Launch, report: ExitReport | None = None) -> HistoryRow:
    return run.history_row(outcome="completed", message="", report=report or ExitReport(0), devices=(), ended_at=ENDED)


# (phase, time) in order; seconds prepared, trained, saved
PHASES: dict[str, tuple[list[tuple[str, float]], tuple[float | None, float | None, float | None]]] = {
    "a plain flow has no phases": ([], (None, None, None)),
    "all phases": ([(P, 110), (T, 130), (S, 180), (F, 185)], (30, 50, 5)),
    "preparing counts from the grant on": ([(T, 130), (F, 180)], (30, 50, None)),
    "training that never said that it had finished": ([(P, 110), (T, 130)], (30, 70, None)),
    "saving that never said that it had finished": ([(P, 110), (T, 130), (S, 180)], (30, 50, 20)),
    "it died while it prepared": ([(P, 110)], (None, None, None)),
    "it prepared and found nothing to train": ([(P, 110), (F, 150)], (50, None, None)),
    "a phase that is reported again keeps its time": ([(P, 110), (T, 130), (T, 140), (F, 180)], (30, 50, None)),
    "a retry counts its own phases": (
        [(P, 110), (T, 120), (S, 130), (P, 140), (T, 150), (S, 170), (F, 175)],
        (10, 20, 5),
    ),
    "a retry that died in training has saved nothing": (
        [(P, 110), (T, 120), (S, 130), (F, 135), (P, 140), (T, 150)],
        (10, 50, None),
    ),
    "a retry that died while it prepared has trained nothing": ([(P, 110), (T, 120), (P, 140)], (None, None, None)),
    "clocks that disagree give no negative times": ([(P, 90), (T, 95), (S, 94), (F, 93)], (0, 0, 0)),
    "what is no phase is ignored": ([("dancing", 110), (T, 130), ("", 140)], (30, 70, None)),
}  # fmt: skip


@pytest.mark.parametrize("phases, expected", PHASES.values(), ids=PHASES.keys())
def test_phase_times(
    phases: list[tuple[str, float]], expected: tuple[float | None, float | None, float | None]
) -> None:
    run = a_launch()
    for phase, at in phases:
        run.enter(phase, at, {})
    values = row(run)
    assert (values.prepared_s, values.trained_s, values.saved_s) == expected
    assert values.waited_s == 10.0 and values.started_at == 101.0


def test_entering_says_whether_anything_is_new() -> None:
    run = a_launch()
    assert run.enter(P, 110.0, {})
    assert not run.enter(P, 120.0, {"waiting": True})
    assert not run.enter("dancing", 120.0, {})
    assert run.phase == P


# what its process reports: (phase, whether it waits at its gate, time), in order; seconds for which it waited
GATES: dict[str, tuple[list[tuple[str, bool, float]], float | None]] = {
    "it had no gate": ([(P, False, 110), (T, False, 130), (F, False, 180)], None),
    "it was prepared, and let in": ([(P, False, 110), (P, True, 125), (T, False, 140), (F, False, 180)], 15),
    "it ended at its gate": ([(P, False, 110), (P, True, 125)], 75),
    "a retry that did not wait": (
        [(P, False, 110), (P, True, 115), (T, False, 120), (P, False, 140), (T, False, 150)],
        None,
    ),
    "a retry that waited before it prepared": (
        [(P, False, 110), (T, False, 120), (P, False, 140), (P, True, 140), (P, False, 145), (T, False, 160)],
        None,
    ),
    "clocks that disagree": ([(P, False, 110), (P, True, 125), (T, False, 124)], 0),
}  # fmt: skip


@pytest.mark.parametrize("reports, expected", GATES.values(), ids=GATES.keys())
def test_a_prepared_run_notes_how_long_it_waited_at_its_gate(
    reports: list[tuple[str, bool, float]], expected: float | None
) -> None:
    run = a_launch()
    run.record.gated = any(waits for _, waits, _ in reports)
    for phase, waits, at in reports:
        run.note(protocol.PHASE, at, {"phase": phase} | ({"waiting": True} if waits else {}))
    values = row(run)
    assert (values.gate_wait_s, values.prepared_behind) == (expected, run.record.gated)


def curve(run: Launch, *points: tuple[float, float]) -> None:
    run.progressed({"step": points[-1][0], "losses": [list(point) for point in points]})


@pytest.mark.parametrize("batch", [1, 2, 7, 64, 3000])
@pytest.mark.parametrize("steps", [1, 2, 511, 512, 513, 514, 1024, 2999])
def test_a_thinned_curve_keeps_its_first_and_last_point(steps: int, batch: int) -> None:
    run = a_launch()
    points = [(float(step), 1.0 / step) for step in range(1, steps + 1)]
    for start in range(0, steps, batch):
        curve(run, *points[start : start + batch])
    assert run.losses[0] == points[0] and run.losses[-1] == points[-1]
    assert len(run.losses) <= 512 and run.losses == sorted(run.losses)
    assert len(run.losses) >= min(steps, 200)
    assert row(run).final_loss == 1.0 / steps and row(run).best_loss == 1.0 / steps


def test_a_loss_without_a_curve_is_a_point() -> None:
    run = a_launch()
    run.progressed({"step": 3, "loss": 0.5})
    run.progressed({"step": 4})
    assert run.losses == [(3, 0.5)] and row(run).final_loss == 0.5 and row(run).steps_done == 4


def test_a_retry_that_begins_again_replaces_the_curve_from_there_on() -> None:
    run = a_launch()
    curve(run, (1, 0.9), (2, 0.8), (3, 0.7))
    curve(run, (2, 0.75))
    assert run.losses == [(1, 0.9), (2, 0.75)]
    assert row(run).final_loss == 0.75 and row(run).best_loss == 0.7


def test_what_was_not_measured_is_not_known() -> None:
    values = row(a_launch())
    unknown = ["cpu_mean", "device_util_mean", "rss_peak_bytes", "final_loss", "best_loss", "steps_done"]
    assert [getattr(values, name) for name in unknown] == [None] * len(unknown)


def test_the_drivers_numbers_fill_in_for_a_run_that_does_not_report() -> None:
    values = row(a_launch(), ExitReport(-9, max_rss_bytes=5, cpu_seconds=49.5))
    assert values.cpu_mean == 0.5 and values.rss_peak_bytes == 5 and values.exit_code == -9


def test_usage_is_averaged_and_its_peak_kept() -> None:
    run = a_launch()
    for util in (0.2, 0.8, 0.5):
        run.used({"device_util": util, "rss_bytes": util * 10, "odd": "text", "net_bytes_per_s": None})
    values = row(run)
    assert values.device_util_mean == pytest.approx(0.5) and values.device_util_peak == 0.8
    assert values.rss_peak_bytes == 8 and values.net_mean_bytes_per_s is None


def test_the_use_of_devices_is_that_of_the_training() -> None:
    run = a_launch()
    run.used({"device_util": 0.0})
    run.enter(T, 110.0, {})
    for util in (0.6, 0.8):
        run.used({"device_util": util})
    run.enter(S, 120.0, {})
    run.used({"device_util": 0.0})
    values = row(run)
    assert values.device_util_mean == pytest.approx(0.7) and values.device_util_std == pytest.approx(0.1)


@pytest.mark.parametrize(
    "outcome, expected", [("completed", False), ("cancelled", False), ("failed", True), ("crashed", True)]
)
def test_only_a_run_that_failed_ran_out_of_memory(outcome: Outcome, expected: bool) -> None:
    """One whose own code caught the error and went on did not."""
    report = ExitReport(1, tail=("MemoryError",))
    values = a_launch().history_row(outcome=outcome, message="", report=report, devices=(), ended_at=ENDED)
    assert values.out_of_memory is expected


@pytest.mark.parametrize("virtual, expected", [(True, True), (False, False)])
def test_a_lack_of_main_memory_is_none_of_gpu_memory(virtual: bool, expected: bool) -> None:
    """Or the next run like it would be taken to need a larger GPU."""
    device, report = Device("a", "A100", 24 << 30, virtual), ExitReport(-9, oom_kills=1)
    values = a_launch().history_row(outcome="crashed", message="", report=report, devices=(device,), ended_at=ENDED)
    assert values.out_of_memory is expected


def test_each_launch_of_a_run_has_a_name_of_its_own_that_a_later_worker_finds(tmp_path: Path) -> None:
    store, run = RecordStore(tmp_path, "gpus"), a_launch()
    run.record.pool = "gpus"
    names = [row(Launch(run.record, store.create(run.record))).launch for _ in range(2)]
    found = [row(Launch(record, folder)).launch for folder, record in store]
    assert names[0] != names[1] and found == names


def test_a_restored_run_notes_the_steps_that_it_had_done() -> None:
    run = a_launch()
    run.enter(T, 110.0, {"step": 30, "steps": 100})
    assert row(run).features == {"steps": 100, "resumed_at": 30}
    run.enter(P, 120.0, {})
    run.enter(T, 130.0, {"step": 0})
    assert row(run).features == {"steps": 100}, "tried again from the beginning"


# (step, seconds since training began) of the reports
EVEN = [(0, 0.0), (40, 20.0), (200, 100.0)]


def followed(reports: list[tuple[int, float]], **begun: Any) -> dict[str, float]:
    run = a_launch()
    run.enter(T, 110.0, {"steps": 200} | begun)
    for step, seconds in reports:
        run.progressed({"step": step}, 110.0 + seconds)
    return dict(row(run).pace)


def test_pace_is_noted_between_reports() -> None:
    assert followed(EVEN) == pytest.approx({str(mark): float(mark) for mark in MARKS})
    slow = followed([(100, 90.0), (200, 100.0)])
    assert (slow["50"], slow["25"], slow["75"]) == pytest.approx((90.0, 45.0, 95.0))


@pytest.mark.parametrize(
    "reports, begun",
    [
        (EVEN, {"step": 10}),
        (EVEN, {"steps": None}),
        (EVEN[:2], {}),
        ([*EVEN[:2], (199, 99.0)], {}),
        ([(40, 20.0), (30, 25.0), (200, 100.0)], {}),
        ([(40, 20.0), (50, 15.0), (200, 100.0)], {}),
    ],
    ids=["restored", "steps unknown", "not all marks", "stopped early", "went back", "clock went back"],
)
def test_only_a_run_that_was_followed_all_along_has_a_pace(reports: list[tuple[int, float]], begun: Any) -> None:
    assert followed(reports, **begun) == {}


def test_a_new_try_has_a_pace_of_its_own_and_an_adopted_run_none() -> None:
    run = a_launch()
    run.enter(T, 110.0, {"steps": 200})
    run.progressed({"step": 150}, 120.0)
    run.enter(P, 125.0, {})
    run.enter(T, 130.0, {})
    run.progressed({"step": 200}, 230.0)
    assert row(run).pace == pytest.approx({str(mark): float(mark) for mark in MARKS})
    adopted = Launch(run.record, Path("unused"), phase=T)
    adopted.progressed({"step": 200}, 230.0)
    assert row(adopted).pace == {}


def test_a_gangs_row_has_the_devices_of_all_its_instances() -> None:
    run = a_launch()
    others = (Placement("n2", ("e", "f"), (0,)), Placement("n3", (), (0,)))
    run.record.placement = Placement("here", ("d",), (0,), others=others, servers=1)
    kept = row(run)
    assert kept.node == "here" and kept.devices == ("d", "e", "f")
    assert kept.places == (("here", ("d",)), ("n2", ("e", "f")), ("n3", ()))
    assert [part["role"] for part in kept.parts] == ["worker", "worker", "server"]


def test_a_run_that_may_share_notes_it() -> None:
    assert "shares" not in row(launched()).features
    shares = launched(request=Request(gpu_memory_bytes=2**30, exclusive=False))
    assert row(shares).features["shares"] is True


def test_an_elastic_run_notes_what_it_did_on_its_devices_and_did_before_on_others() -> None:
    place, before = Placement("here", ("d", "e"), (0,)), {"1": [100, 10.0]}
    run = launched(place=place, request=Request(max_gpus=4), speeds=before)
    run.enter(T, 130.0, {"step": 100})
    for step in range(101, 122):
        run.progressed({"step": step}, 130.0 + (step - 100) / 20)
    features = row(run).features
    assert features["max_gpus"] == 4 and features["speeds"]["1"] == [100, 10.0]
    steps, seconds = features["speeds"]["2"]
    assert steps == 20 and seconds == pytest.approx(1.0)
    assert "speeds" not in row(a_launch()).features, "a run that is not elastic has one speed"


def test_a_run_carries_on_from_what_it_saved_and_not_from_what_it_did_after_that() -> None:
    run = a_launch()
    run.enter(T, 110.0, {"step": 0})
    run.note(protocol.PROGRESS, 120.0, {"step": 40})
    assert run.saved_step is None
    run.note(protocol.CHECKPOINT, 121.0, {"step": 47, "path": "47", "bytes": 1, "seconds": 0.1})
    run.note(protocol.PROGRESS, 130.0, {"step": 58})
    run.note(protocol.CHECKPOINT, 131.0, {"step": 58, "error": "the disk is full"})
    assert run.saved_step == 47 and run.record.progress["step"] == 58
    run.enter(P, 140.0, {})  # a retry in its process that begins from nothing: its checkpoint is still there
    run.enter(T, 141.0, {"step": 0})
    assert run.saved_step == 47
    restored = a_launch()
    restored.enter(T, 110.0, {"step": 47})
    restored.note(protocol.PROGRESS, 120.0, {"step": 50})
    assert restored.saved_step == 47, "it is stopped before it has saved anything again"
