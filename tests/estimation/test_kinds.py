"""What is learned of kinds of devices, on runs that are made up of a known rule."""

from __future__ import annotations

import math
import random

import pytest

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.program.kinds import KindRatios
from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.runs import STEP_S, TRAINING_S, FinishedRun, Known

FACTOR = {"A100": 1.0, "V100": 2.5, "T4": 5.0}


def runs_of(program: str, base_s: float, kinds: dict[str, float], seed: int = 0, count: int = 4) -> list[FinishedRun]:
    """Runs of a program on some kinds, each so many times as slow as on the fastest one, and a little noisy."""
    chance = random.Random(f"{program} {seed}")
    found = []
    for kind, factor in kinds.items():
        for number in range(count):
            width = chance.choice([16, 32, 64])
            step_s = base_s * width / 32 * factor * math.exp(chance.gauss(0.0, 0.03))
            known = Known(program, {"width": width}, device_kind=kind)
            measured = {STEP_S: step_s, TRAINING_S: 100 * step_s}
            name = f"{program}-{kind}-{number}"
            found.append(FinishedRun(name, known, measured, ended_at=float(len(found)), steps=100))
    return found


def test_a_pair_that_nobody_saw_follows_from_other_programs_with_its_interval() -> None:
    runs = [
        *runs_of("one", 0.1, {"A100": 1.0, "V100": 2.5}),
        *runs_of("two", 0.4, {"V100": 2.5, "T4": 5.0}),  # A100 and T4 are only compared over V100
        *runs_of("three", 0.2, {"A100": 1.0}),
    ]
    estimator = Estimator(runs)
    there = estimator.estimate(Known("three", {"width": 32}, device_kind="A100"))
    known = estimator.estimate(Known("three", {"width": 32}, device_kind="T4"))
    found, seen = known.targets[TRAINING_S], there.targets[TRAINING_S]
    assert found.median == pytest.approx(5 * seen.median, rel=0.15)
    assert found.low < 100.0 < found.high
    assert found.high / found.low > seen.high / seen.low, "it is less sure than what was measured"
    assert "of three on A100, and what other flows gain or lose on T4" in known.basis


def test_programs_that_gain_differently_make_it_less_sure() -> None:
    def width_of(*gains: float) -> float:
        runs = [one for at, gain in enumerate(gains) for one in runs_of(f"p{at}", 0.1, {"A100": 1.0, "T4": gain})]
        runs += runs_of("new", 0.1, {"A100": 1.0})
        names = dict.fromkeys(run.known.program for run in runs)
        models = {name: ProgramModel([run for run in runs if run.known.program == name], {}) for name in names}
        found = KindRatios(models).shift("new", "T4")
        assert found is not None and found[0] == "A100"
        return found[1].std

    assert width_of(1.2, 3.0, 8.0, 1.5, 6.0, 2.0) > 1.5 * width_of(3.0, 3.1, 2.9, 3.0, 3.1, 2.9)


def test_what_was_measured_on_a_kind_counts_more_than_what_others_gain() -> None:
    runs = [one for at in range(2) for one in runs_of(f"p{at}", 0.1, {"A100": 1.0, "T4": 5.0})]
    runs += runs_of("flat", 0.1, {"A100": 1.0, "T4": 1.0})
    found = Estimator(runs).by_kind(Known("flat", {"width": 32}), ["A100", "T4"])
    assert found["T4"].median == pytest.approx(found["A100"].median, rel=0.1)


def test_without_any_comparison_nothing_is_made_up() -> None:
    estimator = Estimator([*runs_of("one", 0.1, {"A100": 1.0}), *runs_of("two", 0.1, {"T4": 5.0})])
    assert estimator.by_kind(Known("one", {"width": 32}), ["A100", "T4"]) == {}
    assert any("no run was on T4" in one for one in estimator.estimate(Known("one", device_kind="T4")).warnings)
