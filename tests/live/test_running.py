"""What a data scientist sees of a run that goes well."""

from __future__ import annotations

import json
from pathlib import Path

from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from prefect_gpu.storage.row import HistoryRow
from tests.live.pool import FLOWS, LivePool, eventually


async def test_a_training_run_shows_its_phases_and_ends_completed(pool: LivePool) -> None:
    pool.start_worker()
    run_id = await pool.submit("train", steps=40, step_s=0.05, saving_s=0.5)
    await pool.until(run_id, "Completed")
    names = await pool.names(run_id)
    assert names[0] == "Scheduled" and names[-1] == "Completed"
    phases = [name for name in names if name in ("Preparing", "Training", "Saving")]
    assert phases[-2:] == ["Training", "Saving"]
    assert (await pool.read(run_id)).run_count == 1, "naming a phase must not count as another try"


async def test_progress_and_losses_are_artifacts(pool: LivePool) -> None:
    pool.start_worker()
    run_id = await pool.submit("train", steps=5)
    await pool.until(run_id, "Completed")

    async def artifacts() -> dict[str, object]:
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        found = {a.key: a for a in await pool.client.read_artifacts(artifact_filter=of_run)}
        wanted = {"train-progress", "train-losses", "train-story"}
        complete = wanted <= found.keys() and found["train-progress"].data == 100
        return found if complete else {}

    found = await eventually(artifacts, "the losses, and a progress of 100")
    assert "| 5 | 0.2 |" in found["train-losses"].data


async def test_a_plain_flow_that_reports_nothing_runs_too(pool: LivePool) -> None:
    pool.start_worker()
    run_id = await pool.submit("plain")
    await pool.until(run_id, "Completed")
    assert pool.noted()[str(run_id)] == 1


async def test_a_run_sees_its_device_its_cores_and_its_own_environment(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker()
    seen = tmp_path / "seen.json"
    variables = {"env": {"MARK": "mine"}, "cpus": 1}
    await pool.until(await pool.submit("show_environment", job_variables=variables, path=str(seen)), "Completed")
    environment = json.loads(seen.read_text())
    assert environment["CUDA_VISIBLE_DEVICES"] == "", "a run on a virtual device must not see a GPU"
    assert json.loads(environment["PREFECT_GPU_DEVICES"])[0]["virtual"] is True
    assert environment["MARK"] == "mine"
    assert len(environment["cpus"]) == 1
    assert environment["cwd"] == str(FLOWS), "the deployment's pull step sets the folder"


async def test_a_command_runs_in_its_working_directory(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker()
    variables = {"command": "bash -c 'pwd > seen'", "working_dir": str(tmp_path)}
    state = await pool.until(await pool.submit("plain", job_variables=variables))
    assert (tmp_path / "seen").read_text().strip() == str(tmp_path)
    assert state.name == "Crashed" and "never reported" in (state.message or ""), "not left RUNNING for ever"


async def test_each_finished_run_is_one_row_of_the_history(pool: LivePool) -> None:
    pool.start_worker()
    first = await pool.submit("plain")  # perhaps too early for the warm interpreter, which is ready at its end
    await pool.until(first, "Completed")
    run_id = await pool.submit("train", steps=4, saving_s=0.1)
    await pool.until(run_id, "Completed")
    history = pool.history_of_runs()

    async def recorded() -> list[HistoryRow]:
        rows = history.rows()
        return rows if {str(first), str(run_id)} <= {row.run_id for row in rows} else []

    found = await eventually(recorded, "the history rows")
    assert len(found) == 2
    row = next(row for row in found if row.run_id == str(run_id))
    assert (row.run_id, row.flow_name, row.outcome, row.steps_done) == (str(run_id), "train", "completed", 4)
    assert row.parameters["steps"] == 4 and row.features["batch_size"] == 8
    assert row.virtual and row.devices[0].startswith("virtual-")
    assert row.final_loss == 0.25 and row.best_loss == 0.25
    assert row.rss_peak_bytes > 10 * 2**20 and row.cpu_mean is not None
    assert all(seconds is not None for seconds in (row.waited_s, row.prepared_s, row.trained_s, row.saved_s))
    assert row.warm_start is True
    history.close()


async def test_more_runs_than_devices_wait_with_the_reason_and_then_run(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(virtual_devices="1")
    first = await pool.submit("train", hold=str(tmp_path / "go"))
    await pool.until_noted(first)
    second = await pool.submit("train")
    state = await pool.until(second, "AwaitingGpu")
    assert state.is_scheduled() and "1 of 1 are in use" in (state.message or "")
    (tmp_path / "go").touch()
    await pool.until(first, "Completed")
    await pool.until(second, "Completed")


async def test_output_of_runs_is_repeated_by_the_worker(pool: LivePool) -> None:
    worker = pool.start_worker()
    await pool.until(await pool.submit("crash", how="3"), "Crashed")
    worker.wait_for_output("these are the last words")


async def test_a_run_in_the_future_waits_for_its_time(pool: LivePool) -> None:
    from datetime import datetime, timedelta, timezone

    pool.start_worker()
    due = datetime.now(timezone.utc) + timedelta(seconds=4)
    run_id = await pool.submit("plain", at=due)
    await pool.until(run_id, "Completed")
    started = next(state for state in await pool.history(run_id) if state.is_running())
    assert started.timestamp >= due
