"""How many cores does a training job need?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.cores.search import CoreHistory, CoreTuner


@pytest.mark.parametrize(
    ("category", "cores"),
    [("cv", 3), ("nlp", 5), ("speech", 5), ("CV", 3), (" Speech ", 5), ("tabular", 5), (None, 5), ("", 5)],
)
def test_without_history_a_job_starts_from_the_default_of_its_category(category: str | None, cores: int) -> None:
    assert CoreHistory().start("ann", category) == cores


def test_with_history_a_job_starts_from_the_most_that_its_owner_needed_in_the_category() -> None:
    history = CoreHistory()
    history.finished("ann", "cv", cores=7, gpus=1)
    history.finished("ann", "cv", cores=4, gpus=1)
    history.finished("ann", "nlp", cores=2, gpus=1)
    history.finished("bob", "cv", cores=12, gpus=1)
    assert history.start("ann", "cv") == 7
    assert history.start("ann", "nlp") == 2
    assert history.start("ann", "speech") == 5
    assert history.start("ann", None) == 7  # of all categories


def test_history_counts_per_gpu() -> None:
    history = CoreHistory()
    history.finished("ann", "cv", cores=14, gpus=4)
    assert history.start("ann", "cv") == 4
    assert history.start("ann", "cv", gpus=2) == 8


def utilisation(optimum: int, cores: int) -> float:
    """As in the paper's Fig. 3: linear up to the optimum, then sinking slightly."""
    return 0.9 * cores / optimum if cores <= optimum else 0.9 - 0.002 * (cores - optimum)


def tune(tuner: CoreTuner, optimum: int) -> list[int]:
    """The core counts that a search measures."""
    seen = []
    while tuner.asked is not None:
        seen.append(tuner.asked)
        tuner.observe(tuner.asked, utilisation(optimum, tuner.asked))
    return seen


SEARCHES = {
    "the start is the optimum: one fewer and one more show it": (3, 3, [3, 2, 4]),
    "one more is better": (3, 4, [3, 2, 4, 5]),
    "fewer are as good, down to where it hurts": (5, 4, [5, 4, 3]),
    "several fewer are as good": (5, 3, [5, 4, 3, 2]),
    "a category's default that is far too low is climbed from": (3, 6, [3, 2, 4, 5, 6, 7]),
    "one core is the least": (2, 1, [2, 1]),
    "from one core there is only up": (1, 2, [1, 2, 3]),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_a_search(case: str) -> None:
    start, optimum, measured = SEARCHES[case]
    tuner = CoreTuner(start, most=16)
    assert tune(tuner, optimum) == measured
    assert tuner.best == optimum
    assert tuner.measurements == len(measured)


def test_a_start_within_one_core_of_the_optimum_is_tuned_in_three_or_four_steps_as_in_the_paper() -> None:
    for start in (3, 5):
        for optimum in (start - 1, start, start + 1):
            assert len(tune(CoreTuner(start, most=16), optimum)) in (3, 4)


def test_more_is_not_tried_beyond_the_most_that_can_be_given() -> None:
    tuner = CoreTuner(3, most=4)
    assert tune(tuner, optimum=8) == [3, 2, 4]
    assert tuner.best == 4


def test_a_job_of_several_gpus_steps_by_one_core_per_gpu() -> None:
    tuner = CoreTuner(12, most=32, step=4)
    assert tune(tuner, optimum=16) == [12, 8, 16, 20]
    assert tuner.best == 16


def test_noise_is_no_improvement() -> None:
    tuner = CoreTuner(3, most=16)
    for cores, found in [(3, 0.80), (2, 0.60), (4, 0.809)]:
        tuner.observe(cores, found)
    assert (tuner.asked, tuner.best) == (None, 3)


def test_small_losses_do_not_add_up() -> None:
    tuner = CoreTuner(8, most=16)
    for cores, found in [(8, 0.900), (7, 0.895), (6, 0.891), (5, 0.886)]:
        tuner.observe(cores, found)
    assert (tuner.asked, tuner.best) == (None, 6)


def test_a_measurement_at_another_count_changes_nothing() -> None:
    tuner = CoreTuner(3, most=16)
    tuner.observe(3, 0.5)
    assert tuner.observe(3, 0.9) == 2
    assert tuner.observe(7, 0.9) == 2
    assert tuner.measurements == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 0, "most": 4}, "start is 0"),
        ({"start": 5, "most": 4}, "start is 5"),
        ({"start": 2, "most": 4, "step": 0}, "step is 0"),
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoreTuner(**wrong)


def test_a_utilisation_is_a_number_of_at_least_0() -> None:
    with pytest.raises(ValueError, match="value is -1"):
        CoreTuner(3, most=16).observe(3, -1)


@given(st.data(), st.integers(1, 80), st.integers(0, 40), st.integers(1, 8))
def test_whatever_is_measured_a_search_ends_within_its_bounds(
    data: st.DataObject, start: int, further: int, step: int
) -> None:
    most = start + further
    tuner = CoreTuner(start, most, step)
    seen = []
    while tuner.asked is not None:
        assert 1 <= tuner.asked <= most
        assert tuner.asked not in seen
        seen.append(tuner.asked)
        tuner.observe(tuner.asked, data.draw(st.floats(0, 1)))
    assert tuner.best in (*seen, start)
    assert len(seen) <= (most - 1) // step + 3


@given(st.integers(1, 30), st.integers(1, 30), st.integers(30, 64))
def test_for_a_job_as_the_paper_describes_it_the_search_finds_the_optimum(start: int, optimum: int, most: int) -> None:
    tuner = CoreTuner(start, most)
    tune(tuner, optimum)
    assert utilisation(optimum, optimum) - utilisation(optimum, tuner.best) <= 0.01
    assert tuner.best <= max(start, optimum)
