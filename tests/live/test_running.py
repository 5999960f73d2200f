"""What a data scientist sees of a run that goes well."""

from __future__ import annotations

import json
from pathlib import Path

from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from prefect_gpu.page.server import pages
from prefect_gpu.storage.row import HistoryRow
from tests.live.pool import ALL, FLOWS, LivePool, eventually


async def test_a_training_run_shows_its_phases_and_ends_completed(served: LivePool, tmp_path: Path) -> None:
    run_id = await served.submit("train", hold=str(tmp_path / "go"), hold_saving=str(tmp_path / "saved"))
    for phase, file in {"Training": "go", "Saving": "saved"}.items():
        await served.until(run_id, phase)
        (tmp_path / file).touch()
    await served.until(run_id, "Completed")
    names = await served.names(run_id)
    assert names[0] == "Scheduled" and names[-1] == "Completed"
    phases = [name for name in names if name in ("Preparing", "Training", "Saving")]
    assert phases[-2:] == ["Training", "Saving"]
    assert pages(served.state_dir / "pages") == [], "without a page runs go on all the same"
    assert (await served.read(run_id)).run_count == 1, "naming a phase must not count as another try"


async def test_progress_and_losses_are_artifacts(served: LivePool) -> None:
    run_id = await served.submit("train", steps=5)
    await served.until(run_id, "Completed")

    async def artifacts() -> dict[str, object]:
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        found = {a.key: a for a in await served.client.read_artifacts(artifact_filter=of_run)}
        wanted = {"train-progress", "train-losses", "train-story"}
        complete = wanted <= found.keys() and found["train-progress"].data == 100
        return found if complete else {}

    found = await eventually(artifacts, "the losses, and a progress of 100")
    assert "| 5 | 0.2 |" in found["train-losses"].data


async def test_a_plain_flow_that_reports_nothing_runs_too(served: LivePool) -> None:
    run_id = await served.submit("plain")
    await served.until(run_id, "Completed")
    assert served.noted()[str(run_id)] == 1


async def test_a_run_sees_its_device_its_cores_and_its_own_environment(served: LivePool, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    variables = {"env": {"MARK": "mine"}, "cpus": 1}
    await served.until(await served.submit("show_environment", job_variables=variables, path=str(seen)), "Completed")
    environment = json.loads(seen.read_text())
    assert environment["CUDA_VISIBLE_DEVICES"] == "", "a run on a virtual device must not see a GPU"
    assert json.loads(environment["PREFECT_GPU_DEVICES"])[0]["virtual"] is True
    assert environment["MARK"] == "mine"
    assert len(environment["cpus"]) == 1
    assert environment["cwd"] == str(FLOWS.parent), "the deployment's pull step sets the folder"


async def test_a_run_is_told_what_training_needs_and_no_password_of_the_worker(pool: LivePool, tmp_path: Path) -> None:
    """A warm run: that one which starts cold is told just what it is given holds for each driver."""
    secret = "open-sesame"
    hidden = {
        "PREFECT_INTEGRATIONS_GPU_HISTORY_URL": f"sqlite:///{tmp_path}/{secret}.db",
        "PREFECT_SERVER_DATABASE_PASSWORD": secret,
        "PREFECT_SERVER_API_AUTH_STRING": f"admin:{secret}",
        "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://prefect:{secret}@localhost/prefect",
        "AWS_SECRET_ACCESS_KEY": secret,
        "NVIDIA_API_KEY": secret,
        "WHATEVER_THIS_IS": secret,
    }
    needed = {
        "PREFECT_API_KEY": "of-the-runs",
        "NCCL_DEBUG": "WARN",
        "LD_LIBRARY_PATH": "/nowhere",
        "https_proxy": "http://localhost:1",
        "no_proxy": "localhost,127.0.0.1",
        "WANDB_MODE": "offline",
    }
    worker = pool.start_worker(others=hidden | needed, pass_environment="NOTES,WANDB_*")
    # The first may come before the warm interpreter is ready, which is so when it has ended.
    await pool.until(await pool.submit("plain"), "Completed")
    variables = {"env": {"PREFECT_SERVER_DATABASE_TIMEOUT": "7", "MINE": "1"}}
    run_id = await pool.submit("show_all_variables", job_variables=variables, path=str(tmp_path / "seen"))
    await pool.until(run_id, "Completed")
    seen, at_start = json.loads((tmp_path / "seen").read_text())
    assert [entry for entry in [*map("=".join, seen.items()), *at_start] if secret in entry] == []
    expected = needed | {"PREFECT_API_URL": pool.sandbox.api_url, "MINE": "1", "PREFECT_SERVER_DATABASE_TIMEOUT": "7"}
    assert {name: seen.get(name) for name in expected} == expected
    assert {"PATH", "HOME", "PREFECT_HOME", "PREFECT_GPU_TOKEN"} <= seen.keys()
    worker.wait_for_output("WHATEVER_THIS_IS")  # whoever misses it learns what passes it


async def test_a_command_runs_in_its_working_directory(served: LivePool, tmp_path: Path) -> None:
    variables = {"command": "bash -c 'pwd > seen'", "working_dir": str(tmp_path)}
    state = await served.until(await served.submit("plain", job_variables=variables))
    assert (tmp_path / "seen").read_text().strip() == str(tmp_path)
    assert state.name == "Crashed" and "never reported" in (state.message or ""), "not left RUNNING for ever"


async def test_each_finished_run_is_one_row_of_the_history(served: LivePool) -> None:
    first = await served.submit("plain")  # perhaps too early for the warm interpreter, which is ready at its end
    await served.until(first, "Completed")
    run_id = await served.submit("train", steps=4, saving_s=0.1)
    await served.until(run_id, "Completed")
    history = served.history_of_runs()

    async def recorded() -> list[HistoryRow]:
        rows = [row for row in history.rows() if row.run_id in (str(first), str(run_id))]
        return rows if len({row.run_id for row in rows}) == 2 else []

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


async def test_more_runs_than_devices_wait_with_the_reason_and_then_run(served: LivePool, tmp_path: Path) -> None:
    first = await served.submit("train", job_variables=ALL, hold=str(tmp_path / "go"))
    await served.until_noted(first)
    second = await served.submit("train")
    state = await served.until(second, "AwaitingGpu")
    assert state.is_scheduled() and "2 of 2 are in use" in (state.message or "")
    (tmp_path / "go").touch()
    await served.until(first, "Completed")
    await served.until(second, "Completed")


async def test_output_of_runs_is_repeated_by_the_worker(served: LivePool) -> None:
    await served.until(await served.submit("crash", how="3"), "Crashed")
    served.workers[0].wait_for_output("these are the last words")


async def test_a_run_in_the_future_waits_for_its_time(served: LivePool) -> None:
    from datetime import datetime, timedelta, timezone

    due = datetime.now(timezone.utc) + timedelta(seconds=2)
    run_id = await served.submit("plain", at=due)
    await served.until(run_id, "Completed")
    started = next(state for state in await served.history(run_id) if state.is_running())
    assert started.timestamp >= due
