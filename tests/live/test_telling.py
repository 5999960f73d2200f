"""What others are told of the pool: events that automations act on, and metrics."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from prefect.events.filters import EventFilter, EventNameFilter
from prometheus_client.parser import text_string_to_metric_families

from prefect_gpu.lab.sandbox import free_port
from prefect_gpu.page.server import pages
from tests.live.pool import LivePool, eventually

SAMPLE = Path(__file__).parents[2] / "deployments" / "automations.py"
DASHBOARD = SAMPLE.parent / "grafana" / "prefect-gpu.json"


@pytest.fixture
def called() -> Iterator[tuple[str, list[Any]]]:
    """A webhook: its address, and what it was told so far."""
    told: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", told
    server.shutdown()
    server.server_close()


async def test_automations_and_prometheus_hear_of_runs(
    pool: LivePool, tmp_path: Path, called: tuple[str, list[Any]]
) -> None:
    url, told = called
    command = [sys.executable, str(SAMPLE), "--pool", pool.name, "--url", url, "--on", "ended", "--outcome", "failed"]
    assert pool.name in await asyncio.to_thread(pool.sandbox.run, command)
    pool.start_worker(virtual_devices="1")
    hold = tmp_path / "hold"
    first = await pool.submit("train", hold=str(hold))
    await pool.until(first, "Training")
    second = await pool.submit("saves_and_fails")
    await pool.until(second, "AwaitingGpu")
    [page] = pages(pool.state_dir / "pages")
    busy = await measured(page["url"])
    assert busy["prefect_gpu_devices", "state", "busy"] == 1 and busy["prefect_gpu_runs", "phase", "training"] == 1
    assert busy["prefect_gpu_waiting_runs", "queue", "default"] == 1
    hold.touch()
    assert (await pool.until(first)).is_completed() and (await pool.until(second)).is_failed()

    async def of(run_id: object) -> list[str]:
        """What has happened to a run, by its events."""
        ours = EventFilter(event=EventNameFilter(prefix=["prefect-gpu.run."])).model_dump(mode="json")
        answer = await pool.client._client.post("/events/filter", json={"filter": ours, "limit": 50})
        found = []
        for event in answer.json()["events"]:
            if event["resource"]["prefect.resource.id"] == f"prefect-gpu.run.{run_id}":
                related = {one["prefect.resource.role"]: one["prefect.resource.id"] for one in event["related"]}
                assert related["flow-run"] == f"prefect.flow-run.{run_id}"
                assert {"flow", "deployment", "work-queue", "work-pool"} < related.keys()
                named = {one["prefect.resource.role"] for one in event["related"] if one.get("prefect.resource.name")}
                began = event["event"].rpartition(".")[2] not in ("waiting", "granted")
                assert not began or {"flow-run", "flow", "deployment", "work-pool"} <= named
                found.append(event["event"].removeprefix("prefect-gpu.run."))
        return found[::-1]

    async def complete() -> bool:
        return "ended" in await of(first) and "ended" in await of(second)

    await eventually(complete, "the events of both runs")
    assert [what for what in await of(first) if what != "preparing"] == ["granted", "training", "saving", "ended"]
    assert (await of(second))[:2] == ["waiting", "granted"]

    async def heard() -> bool:
        return bool(told)

    await eventually(heard, "the webhook")
    assert len(told) == 1 and "prefect-gpu.run.ended" in told[0]["text"] and "on purpose" in told[0]["text"], told

    over = await measured(page["url"])
    assert over["prefect_gpu_runs_ended_total", "outcome", "completed"] == 1
    assert over["prefect_gpu_runs_ended_total", "outcome", "failed"] == 1
    assert over["prefect_gpu_devices", "state", "free"] == 1


async def measured(url: str) -> dict[tuple[str, str, str], float]:
    """All samples of a page's metrics with a label beside the pool's, by name and that label."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url.rstrip('/')}/metrics")).text
    return {
        (sample.name, label, value): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for label, value in sample.labels.items()
    }


def test_lines_of_the_dashboard_that_are_no_sums_name_their_pool() -> None:
    """Two pools on one machine have devices of the same name where these are virtual ones."""
    targets = [target for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    lines = [one["legendFormat"] for one in targets if not re.search(r"\b(sum|max)\b", one["expr"])]
    assert lines and all("{{pool}}" in line for line in lines)


@pytest.mark.needs("prometheus")
async def test_every_query_of_the_dashboard_has_an_answer(pool: LivePool, tmp_path: Path) -> None:
    """A real Prometheus asks a real worker; Grafana itself would only draw it."""
    worker = pool.start_worker(virtual_devices="1")
    await asyncio.to_thread(worker.wait_for_output, "Watch the pool at", timeout_s=120.0)
    [page] = pages(pool.state_dir / "pages")
    port, config = free_port(), tmp_path / "prometheus.yml"
    asked = {"job_name": "prefect-gpu", "static_configs": [{"targets": [page["url"].split("/")[2]]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [asked]}))
    server = pool.sandbox.start(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        name="prometheus",
    )
    try:
        queries = {
            target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]
        }
        filled = {query.replace("$pool", pool.name).replace("$__rate_interval", "1m") for query in queries}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

            async def unanswered() -> set[str]:
                asked = {query: await client.get("/api/v1/query", params={"query": query}) for query in filled}
                return {query for query, answer in asked.items() if not answer.json()["data"]["result"]}

            async def begun() -> bool:
                try:
                    answer = await client.get("/api/v1/query", params={"query": "prefect_gpu_runs"})
                except httpx.HTTPError:
                    return False
                return answer.is_success and bool(answer.json()["data"]["result"])  # else it is not ready

            await eventually(begun, "Prometheus to have asked the worker")
            for count in (4, 2):  # of four, the worker learns what to expect of the others
                for run in [await pool.submit("train", step_s=0.1) for _ in range(count)]:
                    await pool.until(run, "Completed")
                await asyncio.to_thread(worker.wait_for_output, "Learned from", timeout_s=120.0)
            left: set[str] = set()

            async def complete() -> bool:
                nonlocal left
                left = await unanswered()
                return not left

            await eventually(complete, "an answer to each query of the dashboard")
            assert not left
            told = (await client.get("/api/v1/label/__name__/values")).json()["data"]
            ours = {
                re.sub("_(bucket|sum|count|created)$", "", name) for name in told if name.startswith("prefect_gpu_")
            }
            assert [name for name in sorted(ours) if not any(name in query for query in queries)] == []
    finally:
        server.terminate()
