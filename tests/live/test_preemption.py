"""A run that has to give its device to a more urgent one stays the same run, and carries on from where it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from prefect.flow_runs import aresume_flow_run, asuspend_flow_run

from tests.live.pool import LivePool, eventually
from tests.live.test_learning import until_logged

STEPS = 5_000  # more than are needed until another run was submitted, also where the server is slow


def undisturbed(steps: int) -> float:
    weight = 1.0
    for step in range(steps):
        weight -= 0.1 * weight * (1 + step % 3)
    return weight


def result_of(trace: Path) -> float:
    return float(trace.with_name(f"{trace.name}.result").read_text())


def steps_of(trace: Path) -> list[int]:
    return [int(line.split()[0]) for line in trace.read_text().splitlines()] if trace.exists() else []


async def test_an_urgent_run_goes_first_and_the_other_carries_on(pool: LivePool, tmp_path: Path) -> None:
    await pool.client.create_work_queue(name="urgent", work_pool_name=pool.name, priority=1)
    default = await pool.client.read_work_queue_by_name("default", work_pool_name=pool.name)
    await pool.client.update_work_queue(default.id, priority=5)
    pool.start_worker(virtual_devices="1")
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    long = await pool.submit(
        "carries_on", job_variables={"preemptible": True}, trace=str(trace), steps=STEPS, step_s=0.12, hurry=str(hurry)
    )

    async def trains() -> bool:
        return len(steps_of(trace)) > 5

    await eventually(trains, "the first run's training")
    urgent = await pool.submit("train", queue="urgent")
    assert (await pool.until(urgent)).is_completed()
    hurry.touch()
    before = len(steps_of(trace))
    assert before < STEPS, "the urgent run was to go first"
    state = await pool.until(long)
    assert state.is_completed() and result_of(trace) == undisturbed(STEPS)
    names = await pool.names(long)
    assert names.count("AwaitingGpu") >= 1 and names.count("Running") == 2, names
    steps = steps_of(trace)
    assert sorted(set(steps)) == list(range(STEPS))
    [row] = await pool.rows([long])
    assert row.outcome == "completed"


async def test_a_suspended_run_gives_its_device_to_others_and_carries_on_when_it_is_resumed(
    pool: LivePool, tmp_path: Path
) -> None:
    pool.start_worker(virtual_devices="1")
    trace, hurry, hold = tmp_path / "trace", tmp_path / "hurry", tmp_path / "hold"
    run = await pool.submit(
        "carries_on",
        job_variables={"preemptible": True, "time_limit": "1h"},
        trace=str(trace),
        steps=STEPS,
        step_s=0.12,
        hurry=str(hurry),
    )

    async def trains() -> bool:
        return len(steps_of(trace)) > 5

    await eventually(trains, "the first run's training")
    await asuspend_flow_run(flow_run_id=run)
    other = await pool.submit("train", hold=str(hold))  # has no checkpoints
    await pool.until(other, "Training")
    assert (await pool.read(run)).state_name == "Suspended" and (await pool.names(run)).count("Suspended") >= 1
    done = len(steps_of(trace))

    await asuspend_flow_run(flow_run_id=other)
    state = await pool.until(other, "Training")
    assert "does not say @gpu(preemptible=True)" in (state.message or ""), state
    assert len(steps_of(trace)) == done, "it does nothing while it is suspended"

    labels = (await pool.read(run)).labels
    assert labels["prefect-gpu.held-s"] > 0, "its time limit counts on, whoever leads then"
    took_s = json.loads(labels["prefect-gpu.took"])["device_s"]
    pool.stop_workers()
    pool.start_worker(virtual_devices="1")
    hurry.touch()
    await aresume_flow_run(run)
    hold.touch()
    assert (await pool.until(other)).is_completed() and (await pool.until(run)).is_completed()
    assert result_of(trace) == undisturbed(STEPS)
    steps = steps_of(trace)
    assert sorted(set(steps)) == list(range(STEPS))
    assert len(steps) < done + STEPS, "it has not begun anew"
    assert (await pool.read(run)).run_count == 1, "no try is used up"
    rows = await pool.rows([run, other])
    assert sorted(row.outcome for row in rows) == ["completed", "completed"]
    trained_s = rows[0].trained_s or 0.0
    assert took_s > 0 and (rows[0].device_s or 0.0) > took_s + trained_s / 2, "what it took before counts, too"
    assert (await pool.read(run)).labels["prefect-gpu.took"] == "", "should it be tried again, that is no part of it"


async def test_a_run_whose_checkpoints_are_gone_says_so_as_it_begins_anew(pool: LivePool, tmp_path: Path) -> None:
    """As on a machine where the folder is not mounted."""
    pool.start_worker(virtual_devices="1")
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    run = await pool.submit(
        "carries_on", job_variables={"preemptible": True}, trace=str(trace), steps=STEPS, step_s=0.12, hurry=str(hurry)
    )

    async def trains() -> bool:
        return len(steps_of(trace)) > 5

    async def has_left() -> bool:
        return "prefect-gpu.took" in (await pool.read(run)).labels

    await eventually(trains, "the training")
    await asuspend_flow_run(flow_run_id=run)
    await eventually(has_left, "what Prefect keeps of it")
    saved = json.loads((await pool.read(run)).labels["prefect-gpu.took"])["saved_step"]
    shutil.rmtree(pool.state_dir / "checkpoints" / str(run))
    hurry.touch()
    await aresume_flow_run(run)
    assert (await pool.until(run)).is_completed()
    await until_logged(pool, run, f"This run had saved step {saved} when it was stopped.")
    assert steps_of(trace).count(0) == 2


async def test_a_run_that_is_suspended_in_its_last_step_completes_and_does_nothing_twice(
    pool: LivePool, tmp_path: Path
) -> None:
    pool.start_worker(virtual_devices="1")
    trace = tmp_path / "trace"
    run = await pool.submit("carries_on", job_variables={"preemptible": True}, trace=str(trace), steps=1, step_s=4.0)

    async def trains() -> bool:
        return len(steps_of(trace)) == 1

    await eventually(trains, "its only step")
    await asuspend_flow_run(flow_run_id=run)
    state = await pool.until(run, "Completed")
    assert state.is_completed() and "Suspended" in await pool.names(run)
    assert steps_of(trace) == [0] and result_of(trace) == undisturbed(1)
    assert (await pool.read(run)).run_count == 1
    [row] = await pool.rows([run])
    assert row.outcome == "completed"


async def test_a_run_leaves_a_device_that_is_taken_out_of_service(pool: LivePool, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    pool.start_worker(virtual_devices="2", notice_file=str(notice)).wait_for_output("Watch the pool at")
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    run = await pool.submit(
        "carries_on", job_variables={"preemptible": True}, trace=str(trace), steps=STEPS, step_s=0.12, hurry=str(hurry)
    )

    async def where() -> str:
        """The device that it trains on."""
        [told] = json.loads(await pool.command("status", "--json"))
        at = [one["devices"] for one in told["runs"] if one["id"] == str(run) and one["phase"] == "training"]
        return str(at[0][0]) if at else ""

    device = await eventually(where, "the training")
    assert "Out of service from" in await pool.command("cordon", device, "--reason", "its fan is loud", "--by", "8s")

    async def elsewhere() -> bool:
        return await where() not in ("", device)

    await eventually(elsewhere, "the run on another device")
    left = [state.message or "" for state in await pool.history(run)]
    assert any(f"{device} leaves service in " in words and "its fan is loud" in words for words in left), left

    async def is_out() -> bool:
        [told] = json.loads(await pool.command("status", "--json"))
        return {one["id"]: one["cordoned"] for one in told["devices"]}[device] == "its fan is loud"

    await eventually(is_out, "the device out of service")
    assert "its fan is loud" in await pool.command("devices")
    waits = await pool.submit("train", job_variables={"gpus": 2})  # it is not refused, as the device may be back

    async def told() -> bool:  # the scheduler hears of it a moment after `status` has shown it
        return "out of service" in str((await pool.until(waits, "AwaitingGpu")).message)

    await eventually(told, "why the next run waits")
    notice.write_text("20")  # so many seconds are left of the machine; the run's checkpoints take less
    await pool.until(run, "AwaitingGpu")
    left = [state.message or "" for state in await pool.history(run)]
    assert any("leaves service in " in words and "announced in" in words for words in left), left
    notice.unlink()
    hurry.touch()
    assert (await pool.until(run)).is_completed() and result_of(trace) == undisturbed(STEPS)
    await pool.command("uncordon", device)
    assert (await pool.until(waits)).is_completed()
