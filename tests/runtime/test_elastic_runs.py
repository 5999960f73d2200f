"""Elastic runs with real processes: they are measured while they train, resized for it, and the next ones know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks._host.pool import Pool, Run, module, notes, virtual_node
from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import Known
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.storage.finished import finished_run
from prefect_gpu.storage.row import HistoryRow

ELASTIC = Request(1, max_gpus=2, preemptible=True)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with Pool(tmp_path, (virtual_node(2),)) as running:
        yield running


async def train(pool: Pool, name: str, step_s: tuple[float, ...], launches: int = 1) -> tuple[HistoryRow, list[int]]:
    """A run that ends after so many launches: (its row, on how many devices each of its steps was done)."""
    file = pool.folder / f"{name}.notes"
    told = {"notes": str(file), "step_s": step_s, "enough": 100, "launches": launches}
    estimate = pool.controller.estimates.submitted(name, Known("train"), ELASTIC.max_gpus)
    training = module("tests.runtime.elastic_training")
    pool.submit(Run(name, training, ELASTIC, {"ELASTIC": json.dumps(told)}, estimate=estimate))
    [course] = await pool.completed(name)
    assert course.row is not None
    return course.row, notes(file)


def learn(pool: Pool, *rows: HistoryRow) -> None:
    pool.controller.estimates.estimator = Estimator([run for run in map(finished_run, rows) if run is not None])


async def test_a_run_that_nobody_knows_grows_once_it_is_measured_and_the_next_starts_grown(pool: Pool) -> None:
    row, devices = await train(pool, "first", (0.04, 0.01), launches=2)
    assert devices[0] == 1 and devices[-1] == 2, "it grew by itself"
    assert len(row.devices) == 2
    run = finished_run(row)
    assert run is not None
    assert set(run.speeds) == {1, 2} and run.speeds[2] > run.speeds[1], "both launches are in its row"
    learn(pool, row)
    _, devices = await train(pool, "second", (0.04, 0.01))
    assert set(devices) == {2}


async def test_a_run_that_growing_made_slower_shrinks_again_and_the_next_one_does_not_try(pool: Pool) -> None:
    row, devices = await train(pool, "first", (0.01, 0.1), launches=3)
    assert [devices[0], devices[-1]] == [1, 1] and 2 in devices
    assert devices == sorted(devices[: devices.index(2)]) + sorted(devices[devices.index(2) :], reverse=True)
    learn(pool, row)
    told = pool.controller.estimates.submitted("second", Known("train"), 2).throughput
    assert told[1] < told[0]
    _, devices = await train(pool, "second", (0.01, 0.1))
    assert set(devices) == {1}
