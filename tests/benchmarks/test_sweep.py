"""The sweep's figures follow from what its runs wrote down, and its claims from those."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.sweep.__main__ import claims_of
from benchmarks.sweep.contenders import CONTENDERS, Sweep, copy_history
from benchmarks.sweep.figures import Figures, Marks, changed_losses, figures, read_marks
from benchmarks.sweep.picture import draw
from benchmarks.sweep.trainings import sweep
from prefect_gpu.storage.history import History, HistoryRow

# One run after the other, the second prepared in time and the third not.
FIRST = Marks("a", began=101, prepared=104, first_step=105, trained=110, saved=112, loss=0.5, on_device=True)
SECOND = Marks("b", began=104, prepared=109, first_step=110.25, trained=114, saved=117, loss=0.25, on_device=True)
THIRD = Marks("c", began=111, prepared=115, first_step=116, trained=120, saved=121, loss=0.75, on_device=True)


def test_figures() -> None:
    assert figures([SECOND, THIRD, FIRST], submitted=100.0) == Figures(
        makespan_s=21.0,
        mean_jct_s=statistics.fmean([12.0, 17.0, 21.0]),
        training_s=5 + 3.75 + 4,
        idle_s=0.25 + 2.0,
        prepared_share=0.5,
        prepared_gaps_s=(0.25,),
        gaps_s=(0.25, 2.0),
        overlaps=0,
        off_device=0,
    )


def test_two_runs_that_train_at_once_are_counted_and_idle_for_no_time() -> None:
    one = figures([FIRST, replace(SECOND, first_step=109.5, on_device=False)], submitted=100.0)
    assert (one.overlaps, one.off_device, one.idle_s) == (1, 1, 0.0)


def test_a_single_run_hands_nothing_over() -> None:
    one = figures([FIRST], submitted=100.0)
    assert (one.prepared_share, one.idle_s, one.gaps_s) == (None, 0.0, ())
    with pytest.raises(ValueError, match="empty"):
        figures([], submitted=0.0)


def test_losses_are_compared_to_the_last_bit() -> None:
    other = replace(FIRST, loss=0.5 + 2**-52)
    assert changed_losses([[FIRST, SECOND], [SECOND, FIRST]]) == []
    assert changed_losses([[FIRST, SECOND], [SECOND, other]]) == ["a"]


def test_marks_are_read_in_the_order_of_training(tmp_path: Path) -> None:
    for run in (THIRD, FIRST, SECOND):
        (tmp_path / f"{run.name}.json").write_text(json.dumps(asdict(run)))
    (tmp_path / "half.tmp").write_text("{")
    assert read_marks(tmp_path) == [FIRST, SECOND, THIRD]


def test_claims_hold_where_the_bounds_are_kept_and_only_there() -> None:
    theirs = figures([FIRST, SECOND, THIRD], submitted=100.0)
    ours = replace(theirs, makespan_s=12.0, idle_s=0.2, prepared_gaps_s=(0.02, 0.03, 0.9), prepared_share=0.95)
    numbers = {"ours": [ours], "process": [theirs], "process-fast": [replace(theirs, makespan_s=16.5)]}
    good = claims_of(numbers, [])
    assert len(good) == 9 and all(claim.holds for claim in good)
    bad = replace(ours, makespan_s=20.0, idle_s=1.0, prepared_gaps_s=(0.06,), prepared_share=0.8, overlaps=1,
                  off_device=1)  # fmt: skip
    assert not any(claim.holds for claim in claims_of({**numbers, "ours": [bad]}, ["a"]))


def test_without_ours_or_theirs_only_what_was_measured_is_claimed() -> None:
    theirs = figures([FIRST, SECOND, THIRD], submitted=100.0)
    assert len(claims_of({"process": [theirs]}, [])) == 3
    assert not any("process" in claim.name for claim in claims_of({"ours": [theirs]}, []))


def test_a_sweep_is_the_same_every_time_and_half_and_half() -> None:
    trainings = sweep(16, seed=5)
    assert trainings == sweep(16, seed=5)
    assert trainings != sweep(16, seed=6)
    assert Counter(one.flow for one in trainings) == {"train_torch": 8, "train_xgboost": 8}
    assert len({one.name for one in trainings}) == 16


def test_contenders_differ_in_one_setting_from_ours() -> None:
    by_name = {one.name: one for one in CONTENDERS}
    ours = by_name["ours"].settings
    for name in ("no-prescheduling", "no-preload", "no-warm-start", "no-learning"):
        own = by_name[name].settings
        assert len([key for key in own | ours if own.get(key) != ours.get(key)]) == 1


def test_a_history_is_copied_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    with History(f"sqlite:///{source}") as history:
        history.record(HistoryRow("r", "train", "completed", 5.0))
        copy_history(source, target)  # while it is open
    with History(f"sqlite:///{target}") as history:
        assert [row.run_id for row in history.rows()] == ["r"]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw({"ours": Sweep(100.0, [FIRST, SECOND]), "process": Sweep(90.0, [THIRD])}, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 5000
