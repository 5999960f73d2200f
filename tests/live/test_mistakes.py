"""Wrong input gets a clear error that names the field, the value and the remedy, and nothing is lost."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx
import pytest
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

from prefect_gpu.request import said_in_vain
from tests.live.pool import ALL, COLD, LivePool, eventually


async def refusal(pool: LivePool, **job_variables: object) -> str:
    """What is said to a run with these variables: by Prefect when it is submitted, or by the worker."""
    try:
        run_id = await pool.submit("plain", job_variables=job_variables)
    except Exception as error:
        return str(error)
    return (await pool.until(run_id, "Crashed")).message or ""


async def test_bad_job_variables(served: LivePool) -> None:
    expected: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({"gpus": 3}, ("gpus=3", "ask for 2 or fewer")),
        ({"gpus": -1}, ("gpus", "-1")),
        ({"gpus": "many"}, ("gpus", "many")),
        ({"gpu_memory": "lots"}, ("gpu_memory", "lots", "6GiB")),
        ({"gpu_memory": "64GiB"}, ("gpu_memory=64GiB", "at most 8GiB")),
        ({"cpus": 0}, ("cpus", "0")),
        ({"category": "cvv"}, ("category", "cvv", "cv")),
        ({"env": "A=1"}, ("env", "A=1")),
        ({"labels": ["a"]}, ("labels", "'a'")),
        ({"stream_output": "perhaps"}, ("stream_output", "perhaps")),
        ({"working_dir": "/no/such/folder"}, ("working_dir", "/no/such/folder", "not a folder")),
    ]
    for variables, words in expected:
        message = await refusal(served, **variables)
        for word in words:
            assert word in message, f"{variables}: {message}"
    assert not served.noted()
    run_id = await served.submit("plain", job_variables={"memory": "300MiB"})  # Prefect passes over it
    await served.until(run_id, "Completed")
    of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))

    async def warned() -> bool:
        return any("has no job variable 'memory'" in log.message for log in await served.client.read_logs(of_run))

    await eventually(warned, "a warning in the run's log")


async def test_a_pool_of_an_earlier_version_lacks_job_variables_and_doctor_says_so(pool: LivePool) -> None:
    """Prefect keeps the template that a pool was made with, and passes over what is not in it."""
    own = (await pool.client.read_work_pool(pool.name)).base_job_template
    former = json.loads(json.dumps(own))
    for name in ("deadline", "owner"):
        del former["variables"]["properties"][name], former["job_configuration"][name]
    await pool.client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=former))
    lacks = "Its base job template lacks deadline, owner"
    assert lacks in (said := await pool.command("doctor")), said
    assert f"prefect work-pool update {pool.name} --base-job-template gpu.json" in said
    found = await pool.client.read_work_pool(pool.name)
    assert "prefect-gpu doctor" in said_in_vain(["deadline"], found)
    assert "prefect-gpu doctor" not in said_in_vain(["deadlin"], found), "that is misspelt"
    await pool.client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=own))
    assert lacks not in await pool.command("doctor")


async def test_numbers_beyond_all_bounds_harm_neither_the_worker_nor_other_runs(served: LivePool) -> None:
    """Each of these once kept the scheduler busy for minutes, or ended the worker and those started after it."""
    expected: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({"gpus": 0, "ps": 10**12}, ("ps=1000000000000", "256", "MOST_INSTANCES")),
        ({"gpus": 0, "ps": 10**6}, ("ps=1000000", "256", "MOST_INSTANCES")),
        ({"gpus": 0, "workers": 10**30}, (f"workers={10**30}", "256", "MOST_INSTANCES")),
        ({"gpus": 0, "ps": 200}, ("ps=200", "ask for fewer")),  # allowed by the settings, and more than two cores hold
        ({"gpus": 10**30}, (f"gpus={10**30}", "1024", "MOST_GPUS")),
        ({"max_gpus": 10**12}, ("max_gpus=1000000000000", "1024", "MOST_GPUS")),
        ({"gpus": 0, "cpus": 10**12}, ("cpus=1000000000000", "1024", "MOST_CPUS")),
    ]
    for variables, words in expected:
        message = await refusal(served, **variables)
        for word in words:
            assert word in message, f"{variables}: {message}"
    await served.until(await served.submit("plain"), "Completed")
    assert "Traceback" not in served.workers[0].output


async def test_a_run_that_no_list_can_have_trains_and_keeps_nobody_waiting(pool: LivePool) -> None:
    """Prefect answers 500 to each question whose answer has an integer beyond 64 bits in it."""
    large = await pool.submit("hungry", mebibytes=1, seed=2**70, catches=True)
    refused = await pool.submit("plain", job_variables={"gpus": 0, "workers": 10**30})
    plain = await pool.submit("plain")
    await pool.client.update_work_pool(pool.name, WorkPoolUpdate(is_paused=True))  # else events may be quicker
    worker = pool.start_worker(**COLD)
    worker.wait_for_output("cannot list some of the pool's runs")
    await pool.client.update_work_pool(pool.name, WorkPoolUpdate(is_paused=False))
    for run_id in (large, plain):
        await pool.until(run_id, "Completed")
    assert f"workers={10**30}" in ((await pool.until(refused, "Crashed")).message or "")
    assert "Traceback" not in worker.output


@pytest.mark.full
async def test_a_run_that_prefect_cannot_read_back_is_refused_and_keeps_nobody_waiting(
    pool: LivePool, tmp_path: Path
) -> None:
    """Prefect takes in half of a letter, and labels that are no numbers, and answers 500 whenever it is to say them."""
    address = f"deployments/{await pool.deploy('plain')}/create_flow_run"
    alone = httpx.Limits(max_keepalive_connections=0)  # the server closes the connection after such an answer
    async with httpx.AsyncClient(base_url=pool.sandbox.api_url, limits=alone) as client:
        for odd in (
            '"parameters": {"name": "caf\\udce9"}',
            '"labels": {"prefect-gpu.held-s": NaN}',
            f'"labels": {{"n": {2**70}}}',
        ):
            await eventually(partial(_taken_in, client, address, f"{{{odd}}}"), odd)
        worker = pool.start_worker(**COLD)
        training = await pool.submit("train", hold=str(tmp_path / "never"))
        await pool.until_noted(training)
        await client.patch(f"flow_runs/{training}/labels", content='{"n": NaN}')
        await pool.cancel(training)
        asked = {"work_pools": {"name": {"any_": [pool.name]}}}

        async def ended() -> list[str]:
            states = [run["state_type"] for run in (await client.post("ui/flow_runs/history", json=asked)).json()]
            return sorted(states) if {*states} <= {"COMPLETED", "CRASHED", "CANCELLED"} else []

        assert await eventually(ended, "the end of them") == ["CANCELLED", "COMPLETED", "CRASHED", "CRASHED"]
        await pool.until(await pool.submit("plain", job_variables=ALL), "Completed")
        for run in (await client.post("ui/flow_runs/history", json=asked)).json():
            await client.delete(f"flow_runs/{run['id']}")  # nobody could list the runs of this server
    assert "cannot read this run back" in worker.output and "Traceback" not in worker.output


async def _taken_in(client: httpx.AsyncClient, address: str, body: str) -> bool:
    """Whether Prefect has the run, though it may not be able to say so; a server on SQLite may be busy."""
    answer = await client.post(address, content=body, headers={"Content-Type": "application/json"})
    return answer.status_code != httpx.codes.SERVICE_UNAVAILABLE


async def test_a_pool_without_devices_says_what_to_do(pool: LivePool) -> None:
    pool.start_worker(virtual_devices="0", **COLD)
    message = await refusal(pool)
    assert "no device" in message and "VIRTUAL_DEVICES" in message
    await pool.until(await pool.submit("plain", job_variables={"gpus": 0}), "Completed")


async def test_a_nan_loss_fails_the_run_with_a_clear_message(served: LivePool) -> None:
    message = (await served.until(await served.submit("diverge"), "Failed")).message or ""
    assert "nan" in message and "loss" in message


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("history_url", "mysql://me:geheim@host/runs", ("history", "does not work with")),
        ("virtual_devices", "-1", ("VIRTUAL_DEVICES", "-1")),
        ("profile", "fastest", ("fastest", "fifo")),
    ],
)
async def test_bad_settings_stop_the_worker_with_one_line(
    pool: LivePool, setting: str, value: str, words: tuple[str, ...]
) -> None:
    worker = pool.start_worker(wait=False, **COLD, **{setting: value})
    assert worker.popen.wait(60) != 0
    assert "Traceback" not in worker.output
    for word in words:
        assert word in worker.output


async def test_nonsense_that_a_run_reports_harms_neither_the_worker_nor_other_runs(
    served: LivePool, tmp_path: Path
) -> None:
    """Raw frames: our own run side would not send them. The run ends, its device is free again, and all stays small."""
    many = ", ".join(f'"key {number}": 1' for number in range(5_000))
    says = [
        f'"kind": "phase", "data": {{"phase": "training", "steps": 1e999, "step": 1e999, "features": {{{many}}}}}',
        '"kind": "progress", "data": {"step": 1e999, "steps": -1e999, "loss": 1e999, "steps_per_s": 1e999}',
        '"kind": "progress", "data": {"step": 3, "steps": 4, "losses": [[1e999, 1], [1, 1e999], [2], 3, [2, 1e308]]}',
        '"kind": "usage", "data": {"rss_bytes": 1e999, "device_memory_bytes": 1e999, "cpu_fraction": -1e999}',
        '"kind": "usage", "data": {"rss_bytes": %s, "device_util": 1e300}' % ("9" * 400),
        '"kind": "checkpoint", "data": {"step": [], "error": {"a": 1}}',
        f'"kind": "never heard of", "data": {{{many}}}',
    ]
    says += [
        f'"kind": "progress", "data": {{"step": 3, "metric {n}": {{{many}}}, "metrics": {{{many}}}}}' for n in range(5)
    ]
    for _ in range(100):
        says += [f'"kind": "phase", "data": {{"phase": "{phase}"}}' for phase in ("preparing", "training", "saving")]
    frames = tmp_path / "frames"
    frames.write_text("\n".join(says))
    said_before = len(served.workers[0].output)
    run_id = await served.submit("babbles", frames=str(frames), hold=str(tmp_path / "go"))
    await served.until_noted(run_id, "said")
    [record] = (served.state_dir / "runs").glob(f"{run_id}-*/record.json")
    assert record.stat().st_size < 50_000
    (tmp_path / "go").touch()
    await served.until(run_id, "Completed")
    [row] = await served.rows([run_id])
    assert row.steps_done == 3 and row.features.get("steps") is None
    await served.until(await served.submit("plain", job_variables=ALL), "Completed")
    assert "Traceback" not in served.workers[0].output[said_before:]
