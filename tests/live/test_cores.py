"""Cores, live: CPU flows beside training in one pool, cores that change under a run, and flows that give way."""

from __future__ import annotations

import json
from pathlib import Path

from tests.live.pool import LivePool, eventually


def newest(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text().splitlines()[-1])) if path.exists() and path.read_text() else {}


async def test_training_gives_up_cores_while_a_cpu_flow_runs_beside_it_and_gets_them_back(pool: LivePool) -> None:
    pool.start_worker(virtual_devices="1")
    go, done, seen = pool.folder / "go", pool.folder / "done", pool.folder / "seen"
    training = await pool.submit("watches_its_cores", path=str(seen), hold=str(done))

    async def cores(count: int) -> bool:
        return newest(seen).get("cores") == count

    async def reported() -> bool:
        return bool(newest(seen))

    await eventually(reported, "the first report")
    everything = newest(seen)["cores"]
    assert isinstance(everything, int)
    if everything < 2:
        done.touch()
        await pool.until(training)
        return
    flow = await pool.submit("waits", hold=str(go), job_variables={"gpus": 0, "cpus": 1})
    await pool.until_noted(flow)
    later = await pool.submit("waits", hold=str(go), job_variables={"gpus": 0, "cpus": 64})
    await eventually(lambda: cores(everything - 1), "a core less")
    state = await pool.until(later, "AwaitingGpu", "Failed", "Crashed")
    assert "cores" in str(state.message)
    go.touch()
    assert (await pool.until(flow)).name == "Completed"
    await pool.cancel(later)
    await pool.until(later, "Cancelled")
    await eventually(lambda: cores(everything), "the core back")
    done.touch()
    assert (await pool.until(training)).name == "Completed"
