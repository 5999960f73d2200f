"""The pictures of the pool's page and of ``prefect-gpu status``, from a real sweep: ``python docs/pool_pictures.py``.

Starts a private Prefect server and a worker with two virtual devices, lets it learn from a few runs of a small
training, and takes pictures while a sweep of the same training goes on: some of its runs share a device, others are
prepared while the run before them still trains. Needs what ``docs/screenshots.py`` needs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from prefect_gpu.cli.status_view import screen_of
from prefect_gpu.page.server import pages
from prefect_gpu.sandbox import Sandbox, wait_until

IMAGES = Path(__file__).resolve().parent / "images"
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",  # virtual devices, also where there are GPUs: the pictures shall look the same
    "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "2",
    "PREFECT_INTEGRATIONS_GPU_PAGE_PORT": "0",
    "PREFECT_WORKER_QUERY_SECONDS": "3",
    "OMP_NUM_THREADS": "1",
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

# A perceptron on made-up data: it loads for two seconds, trains for some ten, and saves for one and a half.
TRAINING = """
import time
import numpy as np
from prefect import flow
from prefect_gpu import training_run

@flow
def fit(lr: float, epochs: int = 60) -> float:
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
    return loss
"""
SHARING = {"gpu_memory": "2GiB", "exclusive": False}


class Pool:
    """The sandbox's pool, for this sweep."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._http = httpx.Client(base_url=sandbox.api_url, timeout=60.0, trust_env=False)
        (sandbox.folder / "sweep.py").write_text(TRAINING)
        arguments = ["deploy", "sweep.py:fit", "-n", "sweep", "-p", "gpus"]
        sandbox.prefect("--no-prompt", *arguments)
        self._id = self._http.get("/deployments/name/fit/sweep").raise_for_status().json()["id"]
        [page] = wait_until(lambda: pages(sandbox.home / "gpu" / "pages"), what="the page")
        self.url = page["url"]

    def start(self, name: str, lr: float, *, shared: bool = False, **parameters: Any) -> None:
        """Submit one run."""
        body: dict[str, Any] = {"name": name, "parameters": {"lr": lr, **parameters}}
        body["job_variables"] = SHARING if shared else {"exclusive": True}
        url = f"/deployments/{self._id}/create_flow_run"
        # A server on SQLite says 503 when much is going on.
        wait_until(lambda: self._http.post(url, json=body).is_success, what=f"{name} to be submitted", every_s=1.0)

    def told(self) -> dict[str, Any]:
        """What the page is told."""
        return {"url": self.url, **httpx.get(f"{self.url}/api/overview", trust_env=False).json()}

    def count(self, *phases: str) -> int:
        """Runs in one of the phases now; "over": those that have ended."""
        return sum((run["phase"] or "over") in phases for run in self.told()["runs"])


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    chosen = parser.parse_args()
    with Sandbox(settings=SETTINGS) as sandbox, sync_playwright() as playwright:
        sandbox.prefect("work-pool", "create", "gpus", "--type", "gpu")
        sandbox.start_worker("gpus", name="desk", wait=False).wait_for_output("Watch the pool", timeout_s=120.0)
        pool = Pool(sandbox)
        for number in range(4):
            pool.start(f"first-{number + 1}", 0.02 * (number + 1), epochs=30)
        wait_until(lambda: pool.count("over") >= 4, what="the first runs to end", timeout_s=200.0, every_s=0.5)
        for number, lr in enumerate((0.003, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3), start=1):
            pool.start(f"lr-{lr:g}", lr, shared=number in (3, 4, 5), epochs=60 + 8 * (number % 3))
        # The liveliest moment: trainings, somebody prepared at a gate, somebody in the queue.
        begun = time.monotonic()

        def lively() -> bool:
            late = time.monotonic() - begun > 100.0
            return pool.count("over") >= 7 and pool.told()["queued"] > 0 and (late or pool.count("gate") > 0)

        wait_until(lively, what="a run at its gate", timeout_s=200.0, every_s=0.3)
        browser = playwright.chromium.launch(executable_path=chosen.chromium, args=FLAGS)
        _terminal(browser, pool.told())
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1280, "height": 940}, color_scheme=scheme)
            page.goto(pool.url)
            page.locator("#live.on").wait_for()
            page.screenshot(path=IMAGES / f"page-{scheme}.png")
            page.close()
        wait_until(lambda: pool.count("over") >= 14, what="the end of the sweep", timeout_s=300.0, every_s=0.5)
        page = browser.new_page(viewport={"width": 1280, "height": 940})
        page.goto(pool.url)
        behind = [run for run in pool.told()["runs"] if run["behind"]]
        page.locator(f"#finished [data-launch='{(behind or pool.told()['runs'])[-1]['n']}']").click()
        page.locator("dialog h3").first.wait_for()
        page.screenshot(path=IMAGES / "page-run.png")
        browser.close()


def _terminal(browser: Browser, told: dict[str, Any]) -> None:
    console = Console(record=True, width=118, file=open("/dev/null", "w"), force_terminal=True, highlight=False)  # noqa: SIM115
    console.print(screen_of(told, time.time()))
    page = browser.new_page(viewport={"width": 1180, "height": 820})
    page.set_content(console.export_svg(title="prefect-gpu status"))
    page.locator("svg").first.screenshot(path=IMAGES / "status.png")
    page.close()


if __name__ == "__main__":
    main()
