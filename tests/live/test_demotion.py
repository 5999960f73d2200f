"""A run whose loss stands still gives way to one that learns, comes back, and ends early if it asked for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey

from prefect_gpu.storage.history import HistoryRow
from tests.live.pool import LivePool, eventually

SHARES: dict[str, Any] = {"gpu_memory": "600MiB", "exclusive": False, "cpus": 1}


def remember_short_trainings(pool: LivePool) -> None:
    """Earlier runs trained for 10 s, so that the pool looks at a loss every second, and not every 30."""
    with pool.history_of_runs() as history:
        for number in range(3):
            history.record(HistoryRow(f"known-{number}", "curved", "completed", ended_at=1.0, trained_s=10.0))


async def test_a_converged_run_gives_way_to_one_that_learns_and_comes_back(pool: LivePool, tmp_path: Path) -> None:
    still, until, enough = (tmp_path / name for name in ("still", "until", "enough"))
    remember_short_trainings(pool)
    pool.start_worker(virtual_devices="1").wait_for_output("Learned from 3 finished runs")
    settled = await pool.submit("curved", job_variables=SHARES, still=str(still), until=str(until))
    unwatched = {**SHARES, "converged": "ignore"}  # on a slow machine its loss stands still, too, before all is seen
    learner = await pool.submit("steady", job_variables=unwatched, losses=str(tmp_path / "losses"), until=str(enough))
    for run_id in (settled, learner):
        await pool.until(run_id, "Training")
    assert pool.record(settled)["weight"] == 1.0

    still.touch()
    await pool.until_weight(settled, 1 / 16)
    still.unlink()
    await pool.until_weight(settled, 1.0)  # its loss moves again
    still.touch()
    await pool.until_weight(settled, 1 / 16)
    enough.touch()
    assert (await pool.until(learner)).name == "Completed"
    await pool.until_weight(settled, 1.0)  # nobody is left to give way to
    until.touch()
    assert (await pool.until(settled)).name == "Completed"

    gave_way, learned = await pool.rows([settled, learner])
    assert gave_way.demoted_s is not None and gave_way.demoted_s > 0.0
    assert learned.demoted_s is None, "whose loss is not known to stand still keeps its share"

    async def story() -> str:
        key, of_run = ArtifactFilterKey(any_=["curved-story"]), ArtifactFilterFlowRunId(any_=[settled])
        found = await pool.client.read_artifacts(artifact_filter=ArtifactFilter(key=key, flow_run_id=of_run))
        return str(found[0].data) if found and "no run beside it learns any more" in str(found[0].data) else ""

    text = await eventually(story, "the story of the run that gave way")
    assert "its loss stands still" in text and "its loss moves again" in text


async def test_a_run_that_asks_for_it_ends_when_it_has_converged_with_its_best_checkpoint(
    pool: LivePool, tmp_path: Path
) -> None:
    still = tmp_path / "still"
    remember_short_trainings(pool)
    pool.start_worker(virtual_devices="1").wait_for_output("Learned from 3 finished runs")
    stops = {**SHARES, "converged": "stop"}
    run_id = await pool.submit("curved", job_variables=stops, still=str(still), until=str(tmp_path / "never"))
    await pool.until(run_id, "Training")
    follows = await pool.submit("train")
    still.touch()
    assert (await pool.until(run_id)).name == "Completed"
    assert (await pool.until(follows)).name == "Completed", "the device is free for the next one"
    [row] = await pool.rows([run_id])
    assert row.outcome == "completed" and row.steps_done
    lines = [line.split() for line in pool.notes.read_text().splitlines()]
    [best] = [float(line[2]) for line in lines if line[:2] == ["best", str(run_id)]]
    assert row.final_loss is not None and best == row.final_loss, "the smallest loss that it has reached"
