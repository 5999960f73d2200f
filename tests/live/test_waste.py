"""A run that holds its device and sleeps is told, then shared, then stopped; one that computes is left alone."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prefect.events.filters import EventFilter, EventNameFilter

from prefect_gpu.page.server import pages
from tests.live.pool import LivePool, eventually


@pytest.mark.full  # the stages take their time, one after the other
async def test_a_run_that_sleeps_on_its_device_is_told_shared_and_stopped(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(
        virtual_devices="2", waste="stop", waste_below_percent="10", waste_minutes="0.15", device_hour_price="3600"
    )
    sleeps = await pool.submit("train", hold=str(tmp_path / "never"))
    works = await pool.submit("computes", until=str(tmp_path / "enough"))
    await pool.until(sleeps, "Training")
    await pool.until(works, "Training")
    [page] = pages(pool.state_dir / "pages")
    async with httpx.AsyncClient() as client:

        async def told() -> bool:
            runs = (await client.get(f"{page['url']}/api/overview")).json()["runs"]
            assert not any(run["wasting"] for run in runs if run["id"] == str(works))
            return any(run["wasting"] for run in runs if run["id"] == str(sleeps))

        await eventually(told, "the page to say that the run wastes its device")
        text = (await client.get(f"{page['url']}/metrics")).text
        assert f'prefect_gpu_wasting_runs{{pool="{pool.name}"}} 1.0' in text
    joins = await pool.submit("train", job_variables={"exclusive": False, "gpu_memory": "256MiB"})
    assert (await pool.until(joins)).is_completed(), "it shares the device of the run that sleeps"
    state = await pool.until(sleeps)
    assert state.is_cancelled()
    (tmp_path / "enough").touch()
    assert (await pool.until(works)).is_completed()

    async def emitted() -> list[str]:
        ours = EventFilter(event=EventNameFilter(name=["prefect-gpu.run.wasting"])).model_dump(mode="json")
        answer = await pool.client._client.post("/events/filter", json={"filter": ours, "limit": 50})
        found = [one for one in answer.json()["events"] if one["resource"]["prefect-gpu.pool"] == pool.name]
        assert all(one["resource"]["prefect.resource.id"].endswith(str(sleeps)) for one in found)
        stages = [one["payload"]["stage"] for one in found][::-1]
        # It is told anew whenever it had done something: even a look at its file may be that on a busy machine.
        return list(dict.fromkeys(stages)) if "stop" in stages else []

    assert await eventually(emitted, "the events") == ["tell", "share", "stop"]
    rows = await pool.rows([sleeps, joins, works])
    stopped = "Stopped by its pool: it has used less than 10 % of its cores"
    assert stopped in rows[0].message and stopped in ((await pool.read(sleeps)).state.message or "")
    assert all(row.device_s and row.cost == row.device_s for row in rows), "a device second costs 1"
