"""How long the pool's page takes for one refresh with 1,000 runs: ``python -m benchmarks.page``.

Two kinds of refresh are measured in a real Chromium (without a GPU): *full*, the first one of a page, which brings all
runs; and *usual*, in which eight runs that train have changed. Each is the time from the browser's question until it
has drawn the answer: the worker's work, the transfer over the loopback interface, parsing, the tables and the lanes,
with all of the time shown, which is the most to draw. Server and browser run on the same cores. What the worker needs
to put the answer together is told, too: for so long it does nothing else.

The worker's share is measured against a real controller's activity log; the runs in it are made up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

from benchmarks import _claims
from benchmarks._chromium import CHROMIUM, FLAGS
from benchmarks._host.pool import virtual_node
from prefect_gpu.page.server import PageServer
from prefect_gpu.runtime.activity_log import ActivityLog
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.runtime.overview import details, overview
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.training import protocol

RUNS, TRAINING, QUEUED = 1000, 8, 200
_MEASURE = """async () => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await drawn();
  const began = performance.now();
  await poolPage.refresh();
  await drawn();
  return performance.now() - began;
}"""


class Pool:
    """A controller that launches nothing, with an activity log full of runs. A source for the page."""

    def __init__(self, folder: Path) -> None:
        node = virtual_node(4, "desk", cpus=range(8))
        driver = ProcessDriver(warm=False, logger=logging.getLogger("benchmark"))
        host: Any = _Nobody()
        self.controller = Controller(host, nodes=(node,), driver=driver, state_dir=folder, pool="gpus", profile="fifo")
        self.training: list[Launch] = []
        self.took_s: list[float] = []
        self.step = 100
        self._fill(self.controller.activity, time.time())

    def _fill(self, activity: ActivityLog, now: float) -> None:
        for number in range(RUNS):
            device = f"desk-{number % 4}"
            record = RunRecord(
                f"00000000-0000-0000-0000-{number:012d}", f"quick-fox-{number}", "gpus", "default", "t",
                Request(), Placement("desk", (device,), (number % 8,)), gated=True,
            )  # fmt: skip
            record.known = {"flow_name": "train", "features": {"steps": 1000}}
            start = now - (RUNS - number) * 3.5 - 12.0
            record.times = {"submitted": start - 60.0, "granted": start}
            run = Launch(record, Path("nowhere"))
            activity.granted(run, start)
            for phase, after in ((protocol.PREPARING, 0.2), (protocol.PREPARING, 1.0), (protocol.TRAINING, 3.0)):
                run.enter(phase, start + after, {"waiting": after == 1.0, "steps": 1000})
                activity.reported(run, protocol.PHASE, start + after, {})
            run.progressed({"losses": [[step, 1.0 / (1 + step)] for step in range(100)], "step": 100, "loss": 0.01})
            if number < RUNS - TRAINING:
                run.enter(protocol.SAVING, start + 13.0, {})
                activity.reported(run, protocol.PHASE, start + 13.0, {})
                activity.ended(run, start + 14.0)
                activity.over(run, start + 14.0, "completed", "")
            else:
                self.training.append(run)
        self.controller.scheduler.handle(ev.NodesChanged((Node("desk", (), ()),)), now)
        for number in range(QUEUED):
            event = ev.JobSubmitted(f"w{number}", Request(), "q", now - number, 0.0, f"ox-{number}")
            for told in self.controller.scheduler.handle(event, now):
                if isinstance(told, Hold):
                    activity.held(told)

    def progress(self) -> None:
        """Every training run has come a step further."""
        self.step += 1
        for run in self.training:
            run.progressed({"step": self.step, "loss": 1.0 / self.step})
            self.controller.activity.reported(run, protocol.PROGRESS, time.time(), {})

    def overview(self, since: int, queue_from: int | None = None) -> dict[str, Any]:
        """See :class:`prefect_gpu.page.app.Source`."""
        began = time.perf_counter()
        told = {"pool": "gpus", **overview(self.controller, time.time(), since=since, queue_from=queue_from)}
        self.took_s.append(time.perf_counter() - began)
        return told

    def details(self, number: int) -> dict[str, Any] | None:
        """See :class:`prefect_gpu.page.app.Source`."""
        return details(self.controller, number, time.time())

    def promise(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See :class:`prefect_gpu.page.app.Source`."""
        raise ValueError("nobody asks for promises here")


class _Nobody:
    def held(self, _: object) -> None:
        """Nobody is told."""


async def measure(repeats: int, chromium: str) -> dict[str, Any]:
    """Milliseconds of each refresh, and how much was sent."""
    with tempfile.TemporaryDirectory() as name:
        pool = Pool(Path(name))
        server = PageServer(pool, host="127.0.0.1", port=0, note=Path(name) / "pages" / "gpus.json", pool="gpus")
        await server.start()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            await page.goto(server.url)
            await page.locator("#live.on").wait_for()
            await page.get_by_role("button", name="All").click()
            usual, full, server_full, server_usual = [], [], [], []
            for _ in range(repeats):
                pool.progress()
                usual.append(await page.evaluate(_MEASURE))
                server_usual.append(1000 * pool.took_s[-1])
                await page.evaluate("poolPage.pool.epoch = ''")  # as after a change of the worker
                full.append(await page.evaluate(_MEASURE))
                server_full.append(1000 * pool.took_s[-1])
            bars = await page.evaluate("poolPage.lanes.boxes.length")
            await browser.close()
        await server.close()
        sent = len(json.dumps(pool.overview(0)))
    assert bars == RUNS, f"{bars} runs were drawn"
    return {
        "usual_ms": usual,
        "full_ms": full,
        "worker_usual_ms": statistics.median(server_usual),
        "worker_full_ms": statistics.median(server_full),
        "full_bytes": sent,
    }


def main() -> int:
    """Measure, and print the claims."""
    parser = _claims.command_line(__doc__, quick="fewer repeats")
    parser.add_argument("--chromium", default=str(CHROMIUM))
    chosen = parser.parse_args()
    found = asyncio.run(measure(5 if chosen.quick else 40, chosen.chromium))
    usual, full = found.pop("usual_ms"), found.pop("full_ms")
    claims = [
        _claims.at_most("usual refresh with 1,000 runs, median, ms", statistics.median(usual), 200.0),
        _claims.at_most("first refresh with 1,000 runs, median, ms", statistics.median(full), 200.0),
    ]
    more = {"usual_max_ms": max(usual), "full_max_ms": max(full), "runs": RUNS, "queued": QUEUED, **found}
    return _claims.report("page", claims, more, as_json=chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
