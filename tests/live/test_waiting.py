"""What a waiting run costs: requests to Prefect and lines of the event log are counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._host.counting import CountingProxy, counting, is_write
from tests.live.pool import LivePool, eventually


async def test_an_unchanged_run_is_taken_in_once(pool: LivePool, tmp_path: Path, monkeypatch: Any) -> None:
    """However often the worker looks at the pool, and whatever else is submitted meanwhile."""
    with counting(pool.sandbox.port) as (proxy,):
        monkeypatch.setitem(pool.sandbox.env, "PREFECT_API_URL", proxy.api_url)
        often = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
        pool.start_worker(virtual_devices="1", others=often, at_once=False, warm_start="false", learn="false")
        runs = [await pool.submit("waits", hold=str(tmp_path / "go"))]
        await pool.until_noted(runs[0])  # else another one may be heard of first
        runs += [await pool.submit("waits", hold=str(tmp_path / "go")) for _ in range(2)]
        await asyncio.gather(*(pool.until(run, "AwaitingGpu") for run in runs[1:]))
        await looked(proxy, 2)
        await eventually(partial(nothing_is_written, proxy), "two looks at the pool that write nothing")
        log = [json.loads(line) for line in (pool.state_dir / "events" / f"{pool.name}.jsonl").read_text().splitlines()]
        (tmp_path / "go").touch()
        await asyncio.gather(*map(pool.until, runs))
    told = Counter(event["job"] for event in log if event.get("event") == "JobSubmitted")
    assert {told[str(run)] for run in runs[1:]} == {1}, [line for line in log if line.get("event") == "JobSubmitted"]


async def nothing_is_written(proxy: CountingProxy) -> bool:
    """Over two looks. The log of the run that trains may still be on its way during the first ones."""
    proxy.seen.clear()
    await looked(proxy, 2)
    # Prefect writes down now and then that the worker is there, and that the pool is polled.
    alive = ("/heartbeat", "/get_scheduled_flow_runs")
    return not [kind for kind in proxy.seen if is_write(kind) and not kind.endswith(alive)]


async def looked(proxy: CountingProxy, times: int) -> None:
    """Wait until the worker has looked at its pool so often."""
    before = looks(proxy)

    async def enough() -> bool:
        return looks(proxy) >= before + times

    await eventually(enough, f"{times} looks at the pool")


def looks(proxy: CountingProxy) -> int:
    """Each asks for the limits first."""
    return sum(count for kind, count in proxy.seen.items() if kind.endswith("/queues/filter"))
