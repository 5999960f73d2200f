"""From finished runs of any parameters to one run's speed on other numbers of GPUs."""

from __future__ import annotations

import random

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import STEP_S, TRAINING_S, FinishedRun, Known


def seconds(width: float, gpus: int) -> float:
    return 0.1 * width / 64 / gpus + 0.01 * (gpus > 1)


def runs(gpus: tuple[int, ...]) -> list[FinishedRun]:
    chance = random.Random(0)
    found = []
    for number in range(30):
        count, width = chance.choice(gpus), chance.choice([64, 128, 256])
        step_s = seconds(width, count) * chance.lognormvariate(0, 0.02)
        known = Known("train", {"width": width, "epochs": 10}, {"steps": 10}, gpus=count)
        found.append(FinishedRun(f"run-{number}", known, {STEP_S: step_s, TRAINING_S: 10 * step_s}, ended_at=number))
    return found


def test_speed_on_other_numbers_of_gpus_follows_the_runs_own_parameters() -> None:
    speeds = Estimator(runs((1, 2, 4))).throughput(Known("train", {"width": 128, "epochs": 10}), 6)
    truth = [1 / seconds(128, gpus) for gpus in range(1, 7)]
    assert len(speeds) == 6
    assert all(abs(speed / true - 1) < 0.25 for speed, true in zip(speeds, truth, strict=True))
    assert list(speeds) == sorted(speeds)
    assert all(speeds[gpus - 1] <= gpus * speeds[0] * 1.05 for gpus in range(1, 7)), "more than linear"


def test_a_program_that_nobody_ran_has_no_speeds() -> None:
    assert Estimator(runs((1, 2))).throughput(Known("other"), 4) == ()
