"""The pictures of the page and of ``prefect-gpu status``, from a real sweep: ``python -m docs.pool_pictures``.

A controller with two virtual devices runs real trainings as processes; a list of jobs is in the place of Prefect.
It learns from a few runs, and the pictures are taken while a sweep of the same training goes on: some runs share a
device, others are prepared while the run before them still trains. Needs playwright and a Chromium.

The large pool of two of the pictures is made up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from playwright.async_api import Browser, async_playwright
from rich.console import Console

from benchmarks._chromium import CHROMIUM, FLAGS
from benchmarks._host.drivers import WarmDriver
from benchmarks._host.pool import ROOT, virtual_node
from benchmarks._host.waiting import until
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pool import Job, KitPool, Past, warm_driver
from prefect_gpu.cli.status_view import screen_of
from prefect_gpu.page.server import PageServer
from prefect_gpu.runtime.overview import details, overview
from prefect_gpu.scheduling.forecast import Outlook, forecast
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from tests.page.scene import large_pool

IMAGES = Path(__file__).resolve().parent / "images"

# A perceptron on made-up data: it loads for two seconds, trains for some ten, and saves for one and a half.
TRAINING = """
import sys, time
import numpy as np
from prefect_gpu import training_run

def fit(lr: float, epochs: int) -> float:
    draw = np.random.default_rng(7)
    with training_run(steps=epochs, batch_size=64) as run:
        time.sleep(2.0)  # stands for reading data
        x = draw.normal(size=(4000, 40))
        y = np.tanh(x @ draw.normal(size=(40, 1))) + 0.1 * draw.normal(size=(4000, 1))
        w1, w2 = 0.1 * draw.normal(size=(40, 32)), 0.1 * draw.normal(size=(32, 1))
        run.ready()
        for _ in run.steps():
            began = time.monotonic()
            while time.monotonic() - began < 0.12:
                some = draw.integers(0, len(x), 64)
                hidden = np.tanh(x[some] @ w1)
                error = hidden @ w2 - y[some]
                g2, g1 = hidden.T @ error / 64, x[some].T @ (error @ w2.T * (1 - hidden**2)) / 64
                w1, w2 = w1 - lr * g1, w2 - lr * g2
                time.sleep(0.01)
            loss = float(np.mean((np.tanh(x @ w1) @ w2 - y) ** 2))
            run.report(loss=loss)
    with run.saving():
        time.sleep(1.5)  # stands for an upload

fit(float(sys.argv[1]), int(sys.argv[2]))
"""
ALONE = Request()
SHARING = Request(gpu_memory_bytes=2 << 30, exclusive=False)


class Desk(Machine):
    """A machine with two virtual devices."""

    @property
    def node(self) -> Node:
        """See the base class."""
        return virtual_node(2, "desk", cpus=self.cpus)


class Sweep(KitPool):
    """A pool whose jobs are trainings of the program above. Implements the page's Source, too."""

    def __init__(self, folder: Path, driver: WarmDriver) -> None:
        machine = Desk(Device("desk-0", "virtual", 8 << 30, virtual=True), (0, 1))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        super().__init__(machine, folder, driver, environment=environment)
        self.program = folder / "fit.py"
        self.program.write_text(TRAINING)
        self.url = ""
        self._outlooks: dict[str, Outlook] = {}

    def command(self, job: Job, marks: Path) -> tuple[str, ...]:
        """See the base class. It writes no marks."""
        return (sys.executable, str(self.program), str(job.parameters["lr"]), str(job.parameters["epochs"]))

    def overview(self, since: int, queue_from: int | None = None) -> dict[str, Any]:
        """See Source."""
        now = time.time()
        told = overview(self.controller, now, since=since, expected=self._outlooks.get)
        return {"pool": "gpus", "url": self.url, **told}

    def details(self, number: int) -> dict[str, Any] | None:
        """See Source."""
        return details(self.controller, number, time.time())

    async def look_ahead(self) -> None:
        """Keep the expected starts up to date, as a worker does."""
        while True:
            self._outlooks = forecast(self.controller.scheduler, time.time())
            await asyncio.sleep(2.0)

    def lively(self) -> bool:
        """Whether there is much to see: some have ended, two train, one is prepared behind them, others wait."""
        told = self.overview(0)
        behind = any(run["gated"] for run in told["runs"])
        return self.count("over") >= 7 and self.count("training") >= 2 and behind and told["queued"] > 0

    def count(self, *phases: str) -> int:
        """Runs in one of the phases now; "over": those that have ended."""
        return sum((run["phase"] or "over") in phases for run in self.overview(0)["runs"])


async def take(chromium: str) -> None:
    """Run the sweep, and take the pictures."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        async with warm_driver() as driver, Sweep(Path(name), driver) as pool, async_playwright() as playwright:
            first = [Job(f"first-{n}", "fit", {"lr": 0.02 * n, "epochs": 20}, ALONE) for n in range(1, 5)]
            pool.controller.estimates.estimator = cast(Any, Past(await pool.run(first)))
            browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            note = Path(name) / "pages" / "gpus.json"
            server = PageServer(pool, host="127.0.0.1", port=4280, note=note, pool="gpus")
            await server.start()
            pool.url = server.url
            looking = asyncio.create_task(pool.look_ahead())
            for n, lr in enumerate((0.003, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), start=1):
                asked = SHARING if n <= 3 else ALONE
                pool.submit_job(Job(f"lr-{lr:g}", "fit", {"lr": lr, "epochs": 60 + 8 * (n % 3)}, asked))
            opened = {}  # before there is much to see: it may be over soon
            for scheme in ("light", "dark"):
                opened[scheme] = await browser.new_page(
                    viewport={"width": 1280, "height": 940}, color_scheme=cast(Any, scheme)
                )
                await opened[scheme].goto(server.url)
                await opened[scheme].locator("#live.on").wait_for()
            await until(pool.lively, "some runs to be over while others train, are prepared and wait")
            told = pool.overview(0)
            for scheme, page in opened.items():
                await page.evaluate("poolPage.refresh()")
                await page.screenshot(path=IMAGES / f"page-{scheme}.png")
                await page.close()
            await _terminal(browser, told)
            await until(lambda: pool.count("over") >= 9, "nine runs to be over")
            page = await browser.new_page(viewport={"width": 1280, "height": 940})
            await page.goto(server.url)
            runs = [run for run in pool.overview(0)["runs"] if run["outcome"]]
            chosen = ([run for run in runs if run["behind"]] or runs)[-1]
            await page.locator(f"#finished [data-launch='{chosen['n']}']").click()
            await page.locator("dialog h3").first.wait_for()
            await page.screenshot(path=IMAGES / "page-run.png")
            looking.cancel()
            await browser.close()
            await server.close()


async def take_large(chromium: str) -> None:
    """The page of a large pool, which is made up: on a desk and on a telephone."""
    with tempfile.TemporaryDirectory() as name:
        note = Path(name) / "gpus.json"
        server = PageServer(large_pool(time.time()), host="127.0.0.1", port=0, note=note, pool="gpus")
        await server.start()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            for picture, width, height in (("page-large", 1280, 1240), ("page-small", 390, 1240)):
                scheme: Any = "dark" if width < 600 else "light"
                page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                await page.goto(server.url)
                await page.locator("#live.on").wait_for()
                await page.evaluate("poolPage.refresh()")
                await page.screenshot(path=IMAGES / f"{picture}.png")
            await browser.close()
        await server.close()


async def _terminal(browser: Browser, told: dict[str, Any]) -> None:
    with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230
        console = Console(record=True, width=122, file=nowhere, force_terminal=True, highlight=False)
        console.print(screen_of(told))
    page = await browser.new_page(viewport={"width": 1240, "height": 900})
    await page.set_content(console.export_svg(title="prefect-gpu status"))
    await page.locator("svg").first.screenshot(path=IMAGES / "status.png")
    await page.close()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=str(CHROMIUM))
    parser.add_argument("--only-large", action="store_true", help="only the pictures of the large pool")
    chosen = parser.parse_args()
    asyncio.run(take_large(chosen.chromium))
    if not chosen.only_large:
        asyncio.run(take(chosen.chromium))


if __name__ == "__main__":
    main()
