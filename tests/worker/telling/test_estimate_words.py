"""What is said of an estimate, in a run's log and on its page."""

from __future__ import annotations

from datetime import timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.online.training import Outlook
from prefect_gpu.estimation.runs import NOTHING_KNOWN, TARGETS, Interval, RunEstimate
from prefect_gpu.runtime.learning.estimates import as_row
from prefect_gpu.worker.telling.estimate_words import drift_words, estimate_markdown, estimate_of, launch_line, to_go
from tests.support import examples

GIB = 2.0**30
NOON = 1_700_049_600.0  # 12:00:00 UTC
ESTIMATE = RunEstimate(
    {
        "training_s": Interval(70.0, 50.0, 95.0),
        "step_s": Interval(0.7, 0.5, 0.95),
        "saving_s": Interval(10.0, 5.0, 20.0),
        "memory_bytes": Interval(2 * GIB, GIB, 3 * GIB),
        "utilisation": Interval(0.8, 0.7, 0.9),
    },
    from_runs=12,
    basis="12 finished runs of train",
)
OUTLOOK = Outlook(Interval(30.0, 25.0, 40.0), Interval(80.0, 75.0, 90.0), Interval(0.9, 0.8, 1.1))


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_the_line_in_the_log() -> None:
    assert launch_line(ESTIMATE) == (
        "Expected: training 70 s (50 s to 1 min 35 s), memory 2 GiB (1 GiB to 3 GiB); from 12 finished runs of train"
    )


@pytest.mark.parametrize("estimate", [NOTHING_KNOWN, RunEstimate({"cpu_cores": Interval(1.0, 1.0, 1.0)}, 3)])
def test_there_is_no_line_where_nothing_is_known_that_its_owner_would_plan_with(estimate: RunEstimate) -> None:
    assert launch_line(estimate) is None


def test_a_run_that_waits_or_prepares_shows_what_is_expected() -> None:
    assert lines(estimate_markdown(ESTIMATE, now=NOON, zone=timezone.utc)) == [
        "Estimated from 12 finished runs of train.",
        "",
        "|  | expected | 90% interval |",
        "| --- | ---: | ---: |",
        "| training | 70 s | 50 s to 1 min 35 s |",
        "| one step | 700 ms | 500 ms to 950 ms |",
        "| saving | 10 s | 5.0 s to 20 s |",
        "| peak memory | 2 GiB | 1 GiB to 3 GiB |",
        "| use of the device | 80% | 70% to 90% |",
    ]


def test_while_it_trains_its_end_is_the_corrected_one_with_its_saving() -> None:
    text = estimate_markdown(ESTIMATE, now=NOON, outlook=OUTLOOK, drift=2.14, zone=timezone.utc)
    assert "Now expected to end at **12:00:40** (between 12:00:30 and 12:01:00), at 900 ms per step." in lines(text)
    assert "**It takes 2.1 times as long per step as expected from 12 finished runs of train.**" in lines(text)
    assert "measured" not in text


def test_when_it_is_over_what_was_measured_stands_beside_what_was_expected() -> None:
    measured = {"training_s": 81.0, "memory_bytes": 2.5 * GIB}
    text = lines(estimate_markdown(ESTIMATE, now=NOON, outlook=OUTLOOK, measured=measured, zone=timezone.utc))
    assert text[2:4] == ["|  | expected | 90% interval | measured |", "| --- | ---: | ---: | ---: |"]
    assert "| training | 70 s | 50 s to 1 min 35 s | 81 s |" in text
    assert "| saving | 10 s | 5.0 s to 20 s | – |" in text
    assert not any("Now expected" in line for line in text)


def test_warnings_are_a_list() -> None:
    odd = RunEstimate(ESTIMATE.targets, 12, ESTIMATE.basis, warnings=("lr=9 is new", "the program changed"))
    assert lines(estimate_markdown(odd, now=NOON))[-2:] == ["- lr=9 is new", "- the program changed"]


def test_nothing_is_shown_of_a_run_that_nothing_is_known_of() -> None:
    assert estimate_markdown(NOTHING_KNOWN, now=NOON, outlook=OUTLOOK, measured={"training_s": 1.0}) == ""


@pytest.mark.parametrize(
    "remaining, said",
    [
        (30.0, "about 30 s to go, until 12:00:30"),
        (3600.0, "about 60 min 0 s to go, until 13:00"),
        (0.0, ""),
    ],
)
def test_to_go(remaining: float, said: str) -> None:
    left = Interval(remaining, remaining, remaining)
    assert to_go(Outlook(left, left, left), NOON, timezone.utc) == said


def test_a_run_may_be_faster_than_expected() -> None:
    assert drift_words(0.5, "2 finished runs of train") == (
        "It takes 0.5 times as long per step as expected from 2 finished runs of train"
    )


def test_what_was_estimated_before_placement_outlives_its_worker() -> None:
    assert estimate_of(as_row(ESTIMATE), NOTHING_KNOWN) == ESTIMATE


@pytest.mark.parametrize("kept", [{}, {"training_s": "long"}, {"training_s": [1.0, None, 2.0], "from_runs": 3}])
def test_a_record_without_a_readable_estimate_shows_the_newest(kept: dict[str, object]) -> None:
    assert estimate_of(kept, ESTIMATE) is ESTIMATE


amounts = st.floats(0.0, 1e15)


@settings(max_examples=examples(0.5))
@given(
    st.dictionaries(st.sampled_from(TARGETS), st.lists(amounts, min_size=3, max_size=3).map(lambda v: Interval(*v))),
    st.none() | st.dictionaries(st.sampled_from(TARGETS), amounts),
)
def test_every_row_of_the_table_has_as_many_cells_as_its_head(
    targets: dict[str, Interval], measured: dict[str, float] | None
) -> None:
    text = estimate_markdown(RunEstimate(targets, 1, "1 finished run of train"), now=NOON, measured=measured)
    counts = {line.count("|") for line in lines(text) if line.startswith("|")}
    assert counts == ({5 if measured is not None else 4} if targets else set())


def test_an_elastic_run_shows_its_speeds_and_which_of_them_are_its_own() -> None:
    text = estimate_markdown(ESTIMATE, now=NOON, speeds=(10.0, 16.7, 21.4), own={1: 10.0})
    assert lines(text)[-1] == "Steps per second by number of devices: **10** on 1 (its own), 16.7 on 2, 21.4 on 3."
    unknown = estimate_markdown(NOTHING_KNOWN, now=NOON, speeds=tuple(range(1, 11)))
    assert unknown.startswith("Steps per second") and unknown.endswith("8 on 8 ….\n"), "long ones are cut"
    assert estimate_markdown(NOTHING_KNOWN, now=NOON) == ""
    gang = estimate_markdown(ESTIMATE, now=NOON, speeds=(10.0, 16.7), apart=(10.0, 12.0), own_apart={2: 12.0})
    assert "devices: 10 on 1, 16.7 on 2" in gang
    assert "devices on several nodes: 10 on 1, **12** on 2 (its own)" in gang
    over = estimate_markdown(ESTIMATE, now=NOON, measured={}, speeds=(10.0, 16.7))
    assert "Steps per second" not in over, "it is over: nothing is planned with them any more"
