"""What a run reports, as the scheduler is told it."""

from __future__ import annotations

import pytest

from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.reports import Measurements
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.training import protocol
from tests.runtime.launches import launched


@pytest.fixture
def run() -> Launch:
    return launched("r", Placement("n", ("d",), (0,)), phase=protocol.TRAINING)


def losses(reports: Measurements, run: Launch, at: float, *points: list[float]) -> list[float]:
    data = {"loss": points[-1][1], "losses": list(points)} if points else {"step": 1}
    return [one.value for one in reports.reported(run, protocol.PROGRESS, at, data) if isinstance(one, ev.LossReported)]


def test_losses_are_told_once_a_second_as_their_mean_since_the_last_time(run: Launch) -> None:
    reports = Measurements()
    assert losses(reports, run, 100.0, [1, 5.0]) == [5.0]
    assert losses(reports, run, 100.4, [2, 4.0], [3, 3.0]) == []
    assert losses(reports, run, 101.0, [4, 2.0]) == [3.0]
    assert losses(reports, run, 102.0) == []
    assert losses(reports, run, 102.1, [5, 1.0]) == [1.0]


def test_what_comes_before_or_after_training_does_not_count(run: Launch) -> None:
    reports = Measurements()
    losses(reports, run, 100.0, [1, 5.0])
    losses(reports, run, 100.2, [2, 1000.0])
    run.phase = protocol.PREPARING
    assert losses(reports, run, 102.0, [2, 4.0]) == []
    run.phase = protocol.TRAINING
    assert losses(reports, run, 103.0, [1, 5.0]) == [5.0]
