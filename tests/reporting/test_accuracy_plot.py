"""How good estimates have been: read from the history, as Markdown, as a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.estimation.runs import MEMORY_BYTES, TRAINING_S, Interval
from prefect_gpu.reporting.accuracy import accuracy_markdown, comparisons, percent, read_estimate
from prefect_gpu.reporting.accuracy_png import write_accuracy_png
from prefect_gpu.reporting.figure import MissingLibrary
from tests.reporting.estimates import GIB, estimated
from tests.reporting.rows import finished


def test_completed_runs_with_an_estimate_are_compared() -> None:
    [one] = comparisons(
        [
            estimated(0, trained_s=8.0),
            estimated(1, outcome="failed"),
            estimated(2, outcome="crashed", out_of_memory=True),
            finished("not-estimated", 180),
        ]
    )
    assert one.pair(TRAINING_S) == (Interval(10, 5, 20), 8.0)
    assert one.pair(MEMORY_BYTES) == (Interval(GIB, GIB / 2, GIB * 2), GIB)
    assert (one.program, one.run_id) == ("train", "id-train-0")


@pytest.mark.parametrize(
    "kept",
    [None, [], "text", {}, {"training_s": None}, {"training_s": [1, 2]}, {"training_s": [1, "2", 3]},
     {"training_s": [None, 1, 2]}, {"training_s": [float("nan"), 1, 2]}, {"other": [1, 1, 1]}],
)  # fmt: skip
def test_an_estimate_that_cannot_be_read_is_none(kept: Any) -> None:
    assert read_estimate(kept) == {}


def test_what_can_be_read_of_an_estimate_is() -> None:
    assert read_estimate({"training_s": [2, 1, 3], "saving_s": ["a", 1, 2], "step_s": [10**400, 1, 2]}) == {
        TRAINING_S: Interval(2.0, 1.0, 3.0)
    }


def test_the_markdown_has_a_row_for_each_flow_and_says_what_is_meant_to_be() -> None:
    rows = [estimated(at, trained_s=8.0) for at in range(3)]
    rows += [estimated(at, flow="a|b", expected_s=50.0) for at in range(3, 5)]
    text = accuracy_markdown(comparisons(rows))
    assert "# Estimates of 5 runs" in text
    assert (
        "The training time was off by 25% (median of 5 runs); 60% lay within their interval, 90% are meant to" in text
    )
    assert "The peak memory was off by 0.0%" in text
    # runs | training, newest, within | start to end: 12 expected of 10 | memory, within
    assert "| train | 3 | 25% | 25% | 100% | 20% | 0.0% | 100% |" in text
    assert "| a\\|b | 2 | 400% | 400% | 0% |" in text
    assert text.index("| train |") < text.index("| a\\|b |")
    assert "25% of the first and 25% of the newest:  \n`▁▁▁▁▁`" in text  # medians, of five runs at last


def test_many_flows_are_not_all_listed() -> None:
    text = accuracy_markdown(comparisons(estimated(at, flow=f"flow-{at:02}") for at in range(53)))
    assert "| flow-49 |" in text and "| flow-50 |" not in text and "3 flows with fewer runs are not shown" in text


def test_without_any_comparison_the_markdown_says_so() -> None:
    assert accuracy_markdown([]) == "No run that had been estimated has completed yet.\n"


@pytest.mark.parametrize(
    "part, words",
    [(0.0, "0.0%"), (0.0994, "9.9%"), (0.0996, "10%"), (0.5, "50%"), (9.99, "999%"), (10.0, "×11"), (29.7, "×30.7")],
)
def test_errors_for_people(part: float, words: str) -> None:
    assert percent(part) == words


@pytest.mark.parametrize(
    "runs", [1, 45, 2500], ids=["a single run", "more runs than the window", "more runs than dots"]
)
def test_a_picture_is_drawn(tmp_path: Path, runs: int) -> None:
    compared = comparisons(estimated(at, trained_s=0.001 if at % 3 else 10.0) for at in range(runs))
    write_accuracy_png(compared, tmp_path / "a.png", title="How good $estimates$ have been")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'prefect-gpu\[plot\]'"):
        write_accuracy_png(comparisons([estimated(0)]), tmp_path / "a.png", title="")
    assert not (tmp_path / "a.png").exists()
