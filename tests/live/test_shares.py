"""Two owners share a pool: what is guaranteed to one is lent to the other, and given back at a checkpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from prefect_gpu.blocks import GpuQuota, QuotaShare
from tests.live.pool import COLD, LivePool, eventually
from tests.live.test_preemption import result_of, steps_of, undisturbed

STEPS = 3_000  # more than are needed until all is seen


async def rows(pool: LivePool) -> dict[str, dict[str, Any]]:
    [one] = json.loads(await pool.command("shares", "--json"))
    return {row["name"]: row for row in one["rows"]}


@pytest.mark.full
async def test_a_guarantee_is_lent_given_back_and_what_was_had_outlives_the_worker(
    pool: LivePool, tmp_path: Path
) -> None:
    quota = GpuQuota(shares=[QuotaShare(name="ada", guaranteed=1)], half_life_hours=1.0)
    await quota.save(pool.name, overwrite=True)
    settings = {"virtual_devices": "2", "quota": pool.name, "learn": "false", **COLD}
    worker = pool.start_worker(**settings)
    hurry = tmp_path / "hurry"

    async def start(name: str, **variables: Any) -> tuple[UUID, Path]:
        trace = tmp_path / name
        run = await pool.submit(
            "carries_on",
            job_variables={"preemptible": True, **variables},
            trace=str(trace),
            steps=STEPS,
            step_s=0.06,
            hurry=str(hurry),
        )

        async def trains() -> bool:
            return len(steps_of(trace)) > 20

        await eventually(trains, f"the training of {name}")
        return run, trace

    first, trace = await start("first", owner="bob")
    last, last_trace = await start("last", owner="bob")

    async def lent() -> bool:
        shown = await rows(pool)
        return "bob" in shown and (shown["bob"]["holds"], shown["bob"]["waits"]) == (2.0, 0.0)

    await eventually(lent, "what ada does not need to be lent to bob")

    hers, her_trace = await start("hers", owner="ada")

    async def given_back() -> bool:
        return {name: row["holds"] for name, row in (await rows(pool)).items()} == {"ada": 1.0, "bob": 1.0}

    await eventually(given_back, "ada's device, and one for bob")
    third = await pool.submit("train", job_variables={"owner": "bob"})
    state = await pool.until(third, "AwaitingGpu")
    assert "bob has had" in (state.message or ""), state

    async def shown() -> bool:
        now = await rows(pool)
        counted = (now["ada"]["holds"], now["bob"]["holds"], now["bob"]["waits"]) == (1.0, 1.0, 2.0)
        return counted and bool(now["bob"]["had_part"] > now["ada"]["had_part"] > 0)

    await eventually(shown, "that bob waits, and has had more than ada")
    text = await pool.command("shares")
    assert "half-life" in text and "ada" in text, text  # headings may be divided

    worker.terminate(timeout_s=10)
    pool.start_worker(**settings)

    async def remembered() -> bool:
        again = await rows(pool)  # of a worker that has just begun, and may have nothing yet
        return again.keys() >= {"ada", "bob"} and again["bob"]["had_part"] > again["ada"]["had_part"] > 0

    await eventually(remembered, "what owners had before the worker was started again")
    hurry.touch()
    for run, path in ((first, trace), (last, last_trace), (hers, her_trace)):
        assert (await pool.until(run)).is_completed() and result_of(path) == undisturbed(STEPS)
    assert (await pool.until(third)).is_completed()
    kept = await pool.rows([first, hers, third])
    assert [row.owner for row in kept] == ["bob", "ada", "bob"]


@pytest.mark.full
async def test_a_block_that_is_changed_counts_and_one_that_is_wrong_leaves_all_as_it_was(pool: LivePool) -> None:
    await GpuQuota().save(pool.name, overwrite=True)
    pool.start_worker(virtual_devices="1", quota=pool.name, learn="false", **COLD)
    await GpuQuota(shares=[QuotaShare(name="bob", limit=0)]).save(pool.name, overwrite=True)

    async def limited() -> bool:
        return "bob" in await rows(pool)

    await eventually(limited, "the change of the block")
    run = await pool.submit("train", job_variables={"owner": "bob"})
    state = await pool.until(run, "AwaitingGpu")
    assert "limit of bob is 0 devices" in (state.message or ""), state
    document = await pool.client.read_block_document_by_name(pool.name, GpuQuota.get_block_type_slug())
    await pool.client.delete_block_document(document.id)
    await asyncio.to_thread(pool.workers[-1].wait_for_output, "there is no block gpu-quota/")
    assert "bob" in await rows(pool), "owners are promised what they were"
    await GpuQuota(shares=[QuotaShare(name="bob", limit=1)]).save(pool.name, overwrite=True)
    assert (await pool.until(run)).is_completed()
