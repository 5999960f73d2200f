"""Cancelled, crashed, retried, drained: every run ends in the state that it should, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psutil

from prefect_gpu.lab.sandbox import wait_until
from prefect_gpu.storage.history import HistoryRow
from prefect_gpu.training.protocol import ENV_RUN_ID
from tests.live.pool import ALL, COLD, DEADLINE_S, LivePool, eventually
from tests.live.proxy import Proxy


async def test_a_waiting_run_is_cancelled_at_once(served: LivePool, tmp_path: Path) -> None:
    first = await served.submit("train", job_variables=ALL, hold=str(tmp_path / "go"))
    await served.until_noted(first)
    second = await served.submit("train")
    await served.until(second, "AwaitingGpu")
    await served.cancel(second)
    await served.until(second, "Cancelled")
    (tmp_path / "go").touch()
    await served.until(first, "Completed")
    third = await served.submit("train")
    await served.until(third, "Completed")
    assert (await served.read(second)).state.name == "Cancelled"
    assert served.noted()[str(second)] == 0


async def test_a_running_run_is_cancelled_and_leaves_no_process(served: LivePool, tmp_path: Path) -> None:
    run_id = await served.submit("train", hold=str(tmp_path / "never"))
    await served.until(run_id, "Training")
    await served.cancel(run_id)
    state = await served.until(run_id)
    assert state.name == "Cancelled"
    assert "Crashed" not in await served.names(run_id)
    wait_until(lambda: not served.sandbox.runs_left(), what="no process of the run")


async def test_a_stubborn_run_is_killed_with_all_that_it_started(served: LivePool, tmp_path: Path) -> None:
    run_id = await served.submit("stubborn", hold=str(tmp_path / "never"))
    await served.until_noted(run_id)
    assert served.sandbox.runs_left()
    await served.cancel(run_id)
    assert (await served.until(run_id)).name == "Cancelled"
    wait_until(lambda: not served.sandbox.runs_left(), what="no process of the run")


async def test_a_killed_process_gives_a_crashed_state_with_a_diagnosis(served: LivePool) -> None:
    run_id = await served.submit("crash", how="kill")
    message = (await served.until(run_id, "Crashed")).message or ""
    assert "SIGKILL" in message and "memory" in message and "these are the last words" in message


async def test_an_exit_code_is_put_in_words(served: LivePool) -> None:
    message = (await served.until(await served.submit("crash", how="3"), "Crashed")).message or ""
    assert "exit code 3" in message and "these are the last words" in message


async def test_a_failing_flow_is_retried_by_prefect_in_its_own_process(served: LivePool) -> None:
    run_id = await served.submit("flaky")
    await served.until(run_id, "Completed")
    assert served.noted()[str(run_id)] == 3


async def test_a_crashed_run_with_retries_left_goes_back_to_the_queue(served: LivePool) -> None:
    run_id = await served.submit("flaky", how="crash")
    await served.until(run_id, "Completed")
    assert served.noted()[str(run_id)] == 3
    states = await served.history(run_id)
    crashes = [state for state in states if state.name == "AwaitingRetry"]
    assert len(crashes) == 2 and all("SIGKILL" in (state.message or "") for state in crashes)
    assert "Crashed" not in [state.name for state in states], "whoever waits for the run would take it for the end"


async def test_a_child_that_outlives_its_run_does_not_speak_for_it(served: LivePool, tmp_path: Path) -> None:
    its_pid = tmp_path / "pid"
    run_id = await served.submit("leaves_a_child", its_pid=str(its_pid))
    await served.until(run_id, "Completed")

    async def ended() -> bool:
        return not psutil.pid_exists(int(its_pid.read_text()))

    await eventually(ended, "the end of the child")
    assert (await served.read(run_id)).state.is_completed()


async def test_a_try_carries_on_from_a_training_that_the_one_before_has_left_open(served: LivePool) -> None:
    run_id = await served.submit("reads_a_generator")
    assert (await served.until(run_id, "Completed", "Failed")).is_completed()
    assert served.noted("from-None")[str(run_id)] == served.noted("from-2")[str(run_id)] == 1
    [row] = await served.rows([run_id])
    assert (row.outcome, row.steps_done) == ("completed", 4)


async def test_each_training_of_a_run_carries_on_from_its_own_checkpoints(served: LivePool) -> None:
    """Also where Prefect remembers what some, in tasks, have returned, and where all is tried in one process."""
    run_id = await served.submit("folds")
    await served.until(run_id, "Completed")
    began = [line.split()[0] for line in served.notes.read_text().splitlines() if line.endswith(f" {run_id}")]
    assert [word for word in began if word != "executed"] == [
        *("first-from-None", "second-from-None", "third-from-None"),
        *("first-from-first-1", "third-from-third-0", "fourth-from-None"),
        *("first-from-first-1", "fourth-from-fourth-0"),
        *("first-from-first-1", "fourth-from-fourth-1"),
    ]


async def test_a_gang_that_falls_apart_is_tried_again_without_an_end_in_between(
    served: LivePool, tmp_path: Path
) -> None:
    """Instance 0 is asked to stop by the worker, and Prefect's engine takes that for a crash, unless it is told."""
    run_id = await served.submit("falls_apart", job_variables={"workers": 2}, marks=str(tmp_path))
    await served.until(run_id, "Completed")
    names = await served.names(run_id)
    assert names.count("AwaitingRetry") == 1 and "Crashed" not in names, names
    assert (tmp_path / "cleaned-up").exists()


async def test_a_gang_whose_first_instance_fails_is_started_anew_as_a_whole(served: LivePool, tmp_path: Path) -> None:
    """Prefect would try the first one again in its process, where the others still wait for the failed try."""
    run_id = await served.submit("falls_apart", job_variables={"workers": 2}, marks=str(tmp_path), first_fails=True)
    await served.until(run_id, "Completed")
    names = await served.names(run_id)
    assert names.count("AwaitingRetry") == 1 and names.count("Pending") == 2, names
    assert "Crashed" not in names, names
    [failed, _] = await served.rows([run_id], attempts=2)
    assert "these are the last words" in (failed.message or "")


async def test_a_flow_that_cannot_be_loaded_crashes_with_the_reason(served: LivePool) -> None:
    variables = {"command": "python -m no_such_module"}
    message = (await served.until(await served.submit("plain", job_variables=variables), "Crashed")).message or ""
    assert "no_such_module" in message


async def test_sigterm_drains_the_worker(pool: LivePool, tmp_path: Path) -> None:
    worker = pool.start_worker(virtual_devices="1", **COLD)
    first = await pool.submit("train", hold=str(tmp_path / "go"))
    await pool.until_noted(first)
    waiting = await pool.submit("train")
    await pool.until(waiting, "AwaitingGpu")
    worker.popen.terminate()
    worker.wait_for_output("Draining: 1 run")
    (tmp_path / "go").touch()
    assert worker.popen.wait(60) == 0
    assert (await pool.read(first)).state.name == "Completed"
    assert (await pool.read(waiting)).state.is_scheduled(), "a draining worker starts nothing"
    pool.start_worker(**COLD)
    await pool.until(waiting, "Completed")


async def test_after_kill_9_the_next_worker_adopts_what_lives_and_settles_what_does_not(
    pool: LivePool, tmp_path: Path
) -> None:
    """Four runs of a worker that is killed: one goes on, one is cancelled later, and two end while no worker lives."""
    worker = pool.start_worker(virtual_devices="4", **COLD)
    go, saved, never = tmp_path / "go", tmp_path / "saved", tmp_path / "never"
    goes_on = await pool.submit("train", hold=str(go), hold_saving=str(saved))
    cancelled_later, cancelled_meanwhile, killed = [await pool.submit("train", hold=str(never)) for _ in range(3)]
    for run_id in (goes_on, cancelled_later, cancelled_meanwhile, killed):
        await pool.until(run_id, "Training")
    worker.kill()
    await pool.cancel(cancelled_meanwhile)
    for process in processes_of(pool, killed):
        process.kill()
    pool.start_worker(virtual_devices="4", **COLD).wait_for_output("adopted it")

    state = await pool.until(killed)
    assert state.name == "Crashed" and "vanished" in (state.message or "")
    await pool.until(cancelled_meanwhile, "Cancelled")
    assert processes_of(pool, cancelled_later), "it lives on until somebody cancels it"
    await pool.cancel(cancelled_later)
    await pool.until(cancelled_later, "Cancelled")
    go.touch()
    await pool.until(goes_on, "Saving")  # the adopted run reports to the new worker
    saved.touch()
    assert (await pool.until(goes_on)).name == "Completed"
    assert set(pool.noted().values()) == {1}, "no run has begun twice"
    wait_until(lambda: not pool.sandbox.runs_left(), what="no process of a run")


def processes_of(pool: LivePool, run_id: UUID) -> list[psutil.Process]:
    """What lives of a run, its supervisor included."""
    left = pool.sandbox.runs_left()
    found = set()
    for process in left:
        with suppress(psutil.Error):
            if process.environ().get(ENV_RUN_ID) == str(run_id):
                found |= {process, *process.parents()}
    return [process for process in left if process in found]


async def test_a_run_whose_worker_is_killed_as_its_process_appears_is_remembered(
    pool: LivePool, tmp_path: Path
) -> None:
    """``kill -9`` between the process's existence and the worker's knowing of it."""
    worker = pool.start_worker(**COLD)
    run_id = await pool.submit("train", hold=str(tmp_path / "go"))

    def kill_as_it_appears() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not list(pool.state_dir.glob("runs/*/process.json")):  # no pause: the moment is short
            assert time.monotonic() < deadline
        worker.kill()

    await asyncio.to_thread(kill_as_it_appears)
    (tmp_path / "go").touch()
    pool.start_worker(**COLD)
    await pool.until(run_id, "Completed")
    with pool.history_of_runs() as history:

        async def recorded() -> list[HistoryRow]:
            return history.rows()

        (row,) = await eventually(recorded, "the history row")
    assert (row.run_id, row.outcome, row.flow_name) == (str(run_id), "completed", "train")


async def test_a_training_whose_end_a_gateway_refuses_tells_it_again(
    pool: LivePool, proxy: Proxy, tmp_path: Path
) -> None:
    through = {"PREFECT_API_URL": proxy.api_url}
    await asyncio.to_thread(pool.start_worker, virtual_devices="1", others=through)
    run_id = await pool.submit("train", hold=str(tmp_path / "go"))
    await pool.until_noted(run_id)
    refused = await proxy.fail(401, r"set_state")
    (tmp_path / "go").touch()
    await eventually(lambda: _true(pool.noted("finished") and refused.met > 2), "its end refused")
    await proxy.heal()
    await pool.until(run_id, "Completed")
    assert pool.noted() == {str(run_id): 1}


async def _true(value: object) -> bool:
    return bool(value)
