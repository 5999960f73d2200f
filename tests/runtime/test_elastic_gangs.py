"""Elastic gangs with real processes: they grow and shrink as others end and come, and lose no step by it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks._host.pool import Pool, Run, module, notes, virtual_node
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.storage.finished import finished_run

STEPS = 20_000
GANG = Request(1, max_workers=3, preemptible=True)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with Pool(tmp_path, (virtual_node(2, "a"), virtual_node(1, "b"))) as running:
        yield running


def begin(pool: Pool, name: str, step_s: float = 0.06) -> Path:
    """A gang that goes on until the file is there that this returns."""
    hurry = pool.folder / f"{name}.hurry"
    told = {
        "notes": str(pool.folder / f"{name}.notes"),
        "result": str(pool.folder / f"{name}.result"),
        "hurry": str(hurry),
        "steps": STEPS,
        "step_s": step_s,
    }
    estimate = pool.controller.estimates.submitted(name, known_of("train", {}, GANG, {}, None), GANG.most_if_elastic)
    training = module("tests.runtime.elastic_gang_training")
    pool.submit(Run(name, training, GANG, {"GANG": json.dumps(told)}, estimate=estimate))
    return hurry


def sizes(pool: Pool, name: str) -> list[int]:
    return [count for _, count in notes(pool.folder / f"{name}.notes")]


def undisturbed() -> float:
    weight = 1.0
    for step in range(STEPS):
        weight -= 0.1 * weight * (1 + step % 3)
    return weight


async def test_a_gang_grows_when_another_run_ends_makes_room_for_the_next_and_loses_no_step(pool: Pool) -> None:
    holds = (sys.executable, "-c", "import time; time.sleep(3600)")
    pool.submit(Run("other", holds, Request(2), estimate=Estimate(service_s=3600.0)))
    hurry = begin(pool, "gang")
    await pool.until(lambda: sizes(pool, "gang")[-1:] == [1], "steps of the first instance alone")
    await pool.end("other")
    await pool.until(lambda: sizes(pool, "gang")[-1:] == [3], "steps of three instances on two nodes")
    await pool.controller.close()
    await pool.begin()  # a worker that comes later goes on with it
    job = pool.controller.scheduler.state.running["gang"]
    assert job.request == GANG and job.placement is not None and len(job.placement.parts) == 3
    await pool.until(lambda: 3 in pool.controller.estimates.throughput("gang", apart=True)[1], "its speed on two nodes")
    pool.submit(Run("next", holds, Request(2), estimate=Estimate(service_s=60.0)))
    await pool.until(lambda: sizes(pool, "gang")[-1:] == [1], "steps of one instance again")
    told, _ = pool.controller.estimates.throughput("gang")
    assert told[2] > told[0], "what it did on two nodes says what it would do on one"
    hurry.touch()
    [course] = await pool.completed("gang")
    await pool.end("next")
    steps = [step for step, _ in notes(pool.folder / "gang.notes")]
    assert sorted(set(steps)) == list(range(STEPS)), "no step is left out"
    assert (pool.folder / "gang.result").read_text() == repr(undisturbed())
    assert len(course.left) == 2 and course.left[0] == "3 workers make it faster than 1"
    run = finished_run(course.row) if course.row is not None else None
    assert run is not None and run.known.gpus == 1, "it ended on one"
    assert set(run.apart) == {3}, "its row keeps what it has measured, of two nodes apart"
