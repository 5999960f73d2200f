"""The demo's figures follow from its history, and its claims from pairs of a bare server and a demo."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.demo import Pair, claims_of, first_training_at
from prefect_gpu.storage.history import HistoryRow

PAIR = Pair(server_s=4.0, server_cpu_s=4.0, first_training_s=15.0, whole_s=70.0, demo_cpu_s=80.0)


def row(run_id: str, granted_at: float, prepared_s: float | None, trained_s: float | None) -> HistoryRow:
    return HistoryRow(
        run_id=run_id, flow_name="train", submitted_at=90.0, granted_at=granted_at, prepared_s=prepared_s,
        trained_s=trained_s, ended_at=granted_at + 100.0, outcome="completed",
    )  # fmt: skip


def test_the_first_training_is_not_the_first_run() -> None:
    sweep = row("sweep", 100.0, None, None)
    assert first_training_at([sweep, row("slow", 101.0, 9.0, 5.0), row("quick", 104.0, 1.5, 5.0)]) == 105.5


def test_pairs_are_compared_before_their_median_is_taken() -> None:
    later = replace(PAIR, server_s=20.0, first_training_s=40.0, whole_s=76.0)  # the machine was busy: 20 s later
    sooner = replace(PAIR, server_s=5.0, first_training_s=12.0, whole_s=60.0)
    first, whole = claims_of([PAIR, later, sooner], 12)
    assert (first.value, first.holds) == (11.0, True)
    assert (whole.value, whole.holds) == (70.0, True)
    first, whole = claims_of([PAIR, later, later], 12)
    assert (first.value, first.holds) == (20.0, False)
    assert (whole.value, whole.holds) == (76.0, False)
