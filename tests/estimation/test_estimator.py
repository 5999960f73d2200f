"""What a run will need, learned from the runs that have finished."""

from __future__ import annotations

import datetime
import math
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.estimator import Estimator, _moment
from prefect_gpu.estimation.program.regressors import REGRESSORS
from prefect_gpu.estimation.runs import (
    LAUNCHING_S,
    MEMORY_BYTES,
    STEP_S,
    TARGETS,
    TRAINING_S,
    UTILISATION,
    FinishedRun,
    Interval,
    Known,
    RunEstimate,
)
from tests.estimation.runs_of import asked, made_run, measured_otherwise, runs_of
from tests.support import examples

_RUNS = runs_of(12)
_POSITIVE = {LAUNCHING_S, STEP_S, TRAINING_S, MEMORY_BYTES}


@pytest.fixture(scope="module")
def learned() -> Estimator:
    return Estimator(_RUNS)


def _is_sensible(estimate: RunEstimate) -> None:
    for target, interval in estimate.targets.items():
        assert all(map(math.isfinite, (interval.low, interval.median, interval.high))), (target, interval)
        assert interval.low <= interval.median <= interval.high, (target, interval)
        assert interval.low > 0 if target in _POSITIVE else interval.low >= 0, (target, interval)


def _width(interval: Interval) -> float:
    return math.log(interval.high / interval.low)


# --- From nothing on ---


@pytest.mark.parametrize("programs", [1, 3])
def test_sizes_that_hardly_differed_say_little_of_one_that_does(programs: int) -> None:
    """Seen on an H200: three runs of 300 to 302 steps, and the fourth, of 1500, was taken to need 10^18 bytes."""
    seconds = (8.2, 11.0, 14.0)  # as slow as the machine happened to be
    runs = [
        FinishedRun(
            f"{program}-{number}",
            Known(program, {"steps": 300 + number}),
            {STEP_S: took / 300, TRAINING_S: took, MEMORY_BYTES: 6.5e8},
            completed=True,
            out_of_memory=False,
            ended_at=float(number),
        )
        for program in "abc"[:programs]
        for number, took in enumerate(seconds)
    ]
    found = Estimator(runs).estimate(Known("a", {"steps": 1500})).targets
    assert 0.01 < found[STEP_S].median < 0.2
    assert found[MEMORY_BYTES].median == pytest.approx(6.5e8, rel=0.1)
    assert all(interval.high <= 100.001 * interval.median for interval in found.values())


def test_without_runs_nothing_is_known() -> None:
    estimate = Estimator().estimate(asked(_RUNS[0]))
    assert (estimate.targets, estimate.from_runs) == ({}, 0)


def test_one_run_gives_a_wide_interval_around_it() -> None:
    [run] = runs_of(1)
    estimate = Estimator([run]).estimate(asked(run))
    assert estimate.from_runs == 1
    for target in (LAUNCHING_S, STEP_S, TRAINING_S, MEMORY_BYTES):
        interval = estimate.targets[target]
        assert interval.median == pytest.approx(run.measured[target], rel=0.01)
        assert interval.low < run.measured[target] / 3 and interval.high > run.measured[target] * 3


@pytest.mark.slow
def test_more_runs_give_narrower_intervals() -> None:
    runs = runs_of(60, seed=4)
    widths = [_width(Estimator(runs[:count]).estimate(asked(runs[-1])).targets[STEP_S]) for count in (1, 6, 59)]
    assert widths == sorted(widths, reverse=True) and widths[0] > 5 * widths[-1]


def test_a_known_program_is_estimated_well() -> None:
    runs = runs_of(50, seed=1, noise=0.0)
    estimator = Estimator(runs[:40])
    for target in (STEP_S, TRAINING_S, MEMORY_BYTES):
        off = [math.log(estimator.estimate(asked(run)).targets[target].median / run.measured[target]) for run in runs]
        assert np.median(np.abs(off[40:])) < 0.05


def test_two_programs_say_nothing_of_a_third() -> None:
    runs = runs_of(4, "one") + runs_of(4, "other")
    assert Estimator(runs).estimate(asked(_RUNS[0])).targets == {}


@pytest.mark.slow
def test_three_programs_say_something_of_a_fourth() -> None:
    runs = [run for seed, name in enumerate("abc") for run in runs_of(12, name, seed=seed)]
    estimate = Estimator(runs).estimate(asked(_RUNS[0]))
    assert estimate.from_runs == 0 and "3 other programs" in estimate.basis
    _is_sensible(estimate)
    step = estimate.targets[STEP_S]
    assert step.low < _RUNS[0].measured[STEP_S] < step.high


@pytest.mark.slow
def test_programs_without_parameters_say_nothing_of_another() -> None:
    runs = [
        FinishedRun(f"{name}-{at}", Known(name), {STEP_S: 0.1 * (at + 1), UTILISATION: 0.5}, ended_at=at)
        for name in "abcd"
        for at in range(3)
    ]
    estimator = Estimator(runs)
    assert estimator.estimate(Known("new", {"lr": 0.1})).targets == {}
    assert 0.1 <= estimator.estimate(Known("a")).targets[STEP_S].median <= 0.3


# --- The same again ---


def test_the_order_of_a_history_does_not_matter(learned: Estimator) -> None:
    shuffled = [_RUNS[at] for at in np.random.default_rng(3).permutation(len(_RUNS))]
    again = Estimator(shuffled)
    for run in runs_of(5, seed=9):
        assert again.estimate(asked(run)) == learned.estimate(asked(run))


@pytest.mark.slow
def test_what_is_taken_over_from_before_is_what_would_be_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with many runs and with few; one has new runs, one has not, one is new; other programs matter too."""
    monkeypatch.setattr("prefect_gpu.estimation.estimator._SELF_RELIANT", 20)  # so that fewer are many
    quick = {name: REGRESSORS[name] for name in ("decision-tree", "linear")}
    monkeypatch.setattr("prefect_gpu.estimation.program.cross_program.REGRESSORS", quick)
    old = [run for seed, (name, count) in enumerate({"a": 24, "b": 21, "c": 8}.items()) for run in runs_of(
        count, name, seed=seed
    )]  # fmt: skip
    new = old + [replace(run, ended_at=100.0 + at) for at, run in enumerate(runs_of(3, "b", seed=7))] + runs_of(9, "d")
    fresh, reused = Estimator(new), Estimator(new, before=Estimator(old))
    for run in runs_of(3, seed=9):
        for name in ("a", "b", "c", "d", "unseen"):
            known = replace(asked(run), program=name)
            assert reused.estimate(known) == fresh.estimate(known)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(REGRESSORS))
def test_columns_that_depend_on_each_other_make_nobody_warn(name: str) -> None:
    """The worker's terminal would show it, and nobody could do anything about it."""
    column = np.random.default_rng(1).uniform(1.0, 30.0, 40)
    rows = np.column_stack([column, column, 1e9 * column, np.ones(40)])
    assert np.isfinite(REGRESSORS[name](40, 0).fit(rows, 2.0 * column).predict(rows)).all()


# --- What must not count ---


def test_failed_and_cancelled_runs_teach_no_times(learned: Estimator) -> None:
    ended = [
        replace(measured_otherwise(run, **dict.fromkeys((LAUNCHING_S, STEP_S, TRAINING_S), 10000000.0)),
                run_id=f"failed-{at}", completed=False, ended_at=at + 0.5)
        for at, run in enumerate(_RUNS)
    ]  # fmt: skip
    again = Estimator(_RUNS + ended)
    for run in runs_of(5, seed=9):
        assert again.estimate(asked(run)) == learned.estimate(asked(run))


def test_runs_out_of_memory_teach_no_times(learned: Estimator) -> None:
    ended = [
        replace(measured_otherwise(run, **{STEP_S: 1e7, TRAINING_S: 1e9, LAUNCHING_S: 1e7}), run_id=f"oom-{at}",
                completed=False, out_of_memory=True, ended_at=at + 0.5)
        for at, run in enumerate(_RUNS[:3])
    ]  # fmt: skip
    again = Estimator(_RUNS + ended)
    for run in runs_of(5, seed=9):
        of, was = again.estimate(asked(run)).targets, learned.estimate(asked(run)).targets
        assert of[TRAINING_S].median == pytest.approx(was[TRAINING_S].median, rel=0.05)
        assert of[LAUNCHING_S].median == pytest.approx(was[LAUNCHING_S].median, rel=0.05)


@pytest.mark.full
def test_columns_that_say_nothing_do_not_hurt() -> None:
    off: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(2):
        chance = np.random.default_rng(seed)
        runs = runs_of(70, seed=seed)
        for useless, errors in off.items():
            if useless:
                runs = [
                    replace(run, known=replace(run.known, parameters={
                        **run.known.parameters, "version": 3, "tag": f"run-{at}", "seed": int(chance.integers(1e9)),
                    })) for at, run in enumerate(runs)
                ]  # fmt: skip
            estimator = Estimator(runs[:30])
            for run in runs[30:]:
                targets = estimator.estimate(asked(run)).targets
                errors += [abs(math.log(targets[of].median / run.measured[of])) for of in (STEP_S, MEMORY_BYTES)]
    assert np.mean(off[True]) <= 1.2 * np.mean(off[False])


# --- Absurd values ---

_numbers = st.sampled_from([0, -1, 1e12, math.nan, math.inf, -math.inf, 10**400, 5e-324, 1.7e308, -1.7e308])
_odd = st.sampled_from([object(), b"1", datetime.date(2026, 1, 1), None, "", "nan", "1e999", "12", True, {}, [], set()])
_values = st.recursive(
    _numbers | _odd | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
_parameters = st.dictionaries(st.sampled_from(["n", "batch_size", "epochs", "width", "new", "@steps", ""]), _values)


@settings(max_examples=examples(0.6), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(parameters=_parameters, declared=st.dictionaries(st.sampled_from(["steps", "batch_size", "new"]), _values))
@example(parameters={}, declared={})
@example(parameters={"n": 1.7e308, "batch_size": 5e-324, "epochs": 1, "width": 64}, declared={})
@example(parameters={"n": 1e3, "batch_size": 8, "epochs": 1, "width": 64}, declared={"steps": 10**400})
def test_any_submission_gets_a_sensible_estimate(
    learned: Estimator, parameters: dict[str, Any], declared: dict[str, Any]
) -> None:
    estimate = learned.estimate(Known("train", parameters, declared))
    assert set(estimate.targets) >= {STEP_S, MEMORY_BYTES, LAUNCHING_S}
    _is_sensible(estimate)


# changed parameters -> what is said of them
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"batch_size": 0}, "batch_size=0.0 is far from what was seen"),
    "far too many": ({"batch_size": 1e12}, "batch_size=1000000000000.0 is far from what was seen"),
    "not a number": ({"batch_size": math.nan}, "batch_size=nan is not finite"),
    "a text for a number": ({"batch_size": "large"}, "batch_size='large' is a text where earlier runs had a number"),
    "a new parameter": ({"depth": 3}, "depth is new: no earlier run had it"),
}


@pytest.mark.parametrize("changed, said", SAID.values(), ids=SAID)
def test_what_is_absurd_is_said_and_makes_intervals_wider(
    learned: Estimator, changed: dict[str, Any], said: str
) -> None:
    usual, odd = learned.estimate(asked(_RUNS[0])), learned.estimate(asked(_RUNS[0], **changed))
    assert usual.warnings == () and any(said in warning for warning in odd.warnings)
    assert _width(odd.targets[STEP_S]) > 1.3 * _width(usual.targets[STEP_S])


def test_of_thousands_of_odd_parameters_a_few_are_named(learned: Estimator) -> None:
    """Each is a line in the log of the run."""
    odd = learned.estimate(asked(_RUNS[0], more={f"part {number}": number for number in range(5_000)}))
    assert len(odd.warnings) == 11 and odd.warnings[-1] == "and 4990 more of its parameters are odd"
    assert all(interval.high < math.inf for interval in odd.targets.values())


_history_values = st.sampled_from(
    [0, -1, 1e12, 1.7e308, -1.7e308, 5e-324, 10**400, math.nan, None, "many", "3", [1, "a"], {"": 1}]
)


@pytest.mark.slow
@settings(max_examples=examples(0.15), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    columns=st.lists(st.fixed_dictionaries({"n": _history_values, "opt": _history_values}), min_size=7, max_size=7),
    measured=st.lists(st.sampled_from([0.0, -1.0, 1e-300, 1e12, 1.7e308, 3.0]), min_size=7, max_size=7),
    declared=st.sampled_from([0, -5, 10**400, "many", 7]),
)
def test_a_history_may_hold_anything(columns: list[dict[str, Any]], measured: list[float], declared: Any) -> None:
    runs = [
        FinishedRun(
            f"r{at}", Known("train", parameters, {"steps": declared}), dict.fromkeys(TARGETS, value), ended_at=at
        )
        for at, (parameters, value) in enumerate(zip(columns, measured, strict=True))
    ]
    estimator = Estimator(runs)
    for run in runs[:3]:
        _is_sensible(estimator.estimate(run.known))


# --- Out of memory ---


def _out_of_memory(run: FinishedRun, reached: float, ended_at: float) -> FinishedRun:
    return replace(
        run, run_id=f"oom-{ended_at}", measured={MEMORY_BYTES: reached}, completed=False, out_of_memory=True,
        ended_at=ended_at,
    )  # fmt: skip


def test_the_next_try_after_running_out_of_memory_is_given_more(learned: Estimator) -> None:
    known = asked(_RUNS[0])
    reached = 2 * learned.estimate(known).targets[MEMORY_BYTES].high
    once = Estimator([*_RUNS, _out_of_memory(_RUNS[0], reached, 20)]).estimate(known)
    assert once.targets[MEMORY_BYTES].median >= 1.5 * reached
    assert any("ran out of memory" in warning for warning in once.warnings)
    failures = [_out_of_memory(_RUNS[0], reached, 20), _out_of_memory(_RUNS[0], 1.5 * reached, 21)]
    twice = Estimator(_RUNS + failures).estimate(known)
    assert twice.targets[MEMORY_BYTES].median >= 1.5 * 1.5 * reached
    _is_sensible(twice)


def test_a_first_run_that_ran_out_of_memory_teaches() -> None:
    estimate = Estimator([_out_of_memory(_RUNS[0], 1e9, 0)]).estimate(asked(_RUNS[0]))
    assert set(estimate.targets) == {MEMORY_BYTES} and estimate.from_runs == 0
    assert estimate.targets[MEMORY_BYTES].median >= 1.5e9


# --- Changes of a program ---


def test_a_changed_program_is_noticed_and_estimates_follow() -> None:
    before, after = runs_of(20, seed=2), runs_of(8, seed=3, speed=2.0)
    runs = before + [replace(run, run_id=f"new-{at}", ended_at=1e6 + at) for at, run in enumerate(after)]
    estimator = Estimator(runs)
    estimate = estimator.estimate(asked(before[0]))
    [warning] = estimate.warnings
    assert "the program seems to have changed: since 1970-01-12" in warning, "the day of the first run after it"
    said = re.search(r"its step_s is (\S+) times", warning)
    assert said is not None and float(said[1]) == pytest.approx(2.0, rel=0.15)
    assert estimate.targets[STEP_S].median == pytest.approx(2 * before[0].measured[STEP_S], rel=0.15)
    model = estimator.programs["train"]
    assert model.change is not None
    model.change = replace(model.change, factor=1.01)
    assert not estimator.estimate(asked(before[0])).warnings, "what else they differ in explains it"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_change(seed: int) -> None:
    runs = runs_of(24, seed=seed, noise=0.2)
    runs[12] = measured_otherwise(runs[12], **{STEP_S: 8 * runs[12].measured[STEP_S]})
    assert Estimator(runs).programs["train"].change is None


# --- Others ---


@pytest.mark.full
def test_intervals_hold_as_often_as_they_say() -> None:
    held: dict[str, list[bool]] = {LAUNCHING_S: [], STEP_S: [], TRAINING_S: []}
    for seed in range(5):
        runs = runs_of(90, seed=seed, noise=0.1)
        chance = np.random.default_rng(seed)
        runs = [
            measured_otherwise(run, **{LAUNCHING_S: run.measured[LAUNCHING_S] * math.exp(0.1 * chance.normal())})
            for run in runs
        ]
        estimator = Estimator(runs[:40])
        for run in runs[40:]:
            targets = estimator.estimate(asked(run)).targets
            for target, hits in held.items():
                hits.append(targets[target].low <= run.measured[target] <= targets[target].high)
    for target, hits in held.items():
        assert 0.84 <= np.mean(hits) <= 0.96, target


@pytest.mark.slow
def test_more_coverage_is_a_wider_interval() -> None:
    runs = runs_of(30, seed=5)
    widths = [_width(Estimator(runs, coverage=of).estimate(asked(runs[0])).targets[STEP_S]) for of in (0.5, 0.8, 0.95)]
    assert widths == sorted(widths) and widths[0] < widths[-1]


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1.0, math.nan])
def test_an_impossible_coverage_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match="is not between 0 and 1"):
        Estimator(coverage=coverage)


def test_training_is_steps_times_the_time_of_a_step(learned: Estimator) -> None:
    run = made_run(0, {"n": 4_000, "batch_size": 40, "epochs": 5, "width": 32})
    targets = learned.estimate(asked(run)).targets
    assert targets[TRAINING_S].median == pytest.approx(500 * targets[STEP_S].median, rel=0.02)


def test_asking_needs_no_machine_learning_library() -> None:
    """Importing them takes seconds: a worker has them imported by the first refit, in the background."""
    code = "import sys, prefect_gpu.estimation.estimator; print({'sklearn', 'xgboost', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("at", [1e300, -1e300, 1e13])
def test_a_moment_beyond_the_calendar_is_no_error(at: float) -> None:
    assert _moment(at) == f"{at:g}"
