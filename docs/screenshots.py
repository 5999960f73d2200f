"""The pictures in ``docs/images``, taken anew from a real run: ``python -m docs.screenshots``.

Starts a private Prefect server and a worker with two virtual devices, deploys the repository's flows, starts the
model search, and takes pictures of Prefect's pages while it goes on. Needs ``pip install -e '.[demo]'``, playwright,
and a Chromium (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

from benchmarks._chromium import CHROMIUM, FLAGS
from prefect_gpu.lab.sandbox import Sandbox, wait_until
from prefect_gpu.reporting.timeline import write_timeline
from prefect_gpu.storage.history import History

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = Path(__file__).resolve().parent / "images"
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",  # virtual devices, also where there are GPUs: the pictures shall look the same
    "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "2",
    "PREFECT_INTEGRATIONS_GPU_PRELOAD": "sklearn.datasets,sklearn.neural_network,sklearn.pipeline,xgboost,optuna",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Api:
    """The few questions that the pictures need answered."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30.0, trust_env=False)

    def start(self, flow: str, **parameters: Any) -> str:
        """Start a run of the deployment that is named after the pool; its id."""
        deployment = self._http.get(f"/deployments/name/{flow}/gpus").raise_for_status().json()
        body = {"parameters": parameters}
        answer = self._http.post(f"/deployments/{deployment['id']}/create_flow_run", json=body)
        return str(answer.raise_for_status().json()["id"])

    def runs(self, *states: str) -> list[dict[str, Any]]:
        """Runs whose state has one of the names."""
        found = self._http.post("/flow_runs/filter", json={"sort": "START_TIME_ASC", "limit": 200}).json()
        return [run for run in found if (run["state"] or {}).get("name") in states]

    def losses(self, run_id: str) -> str:
        """The id of the artifact with a run's losses."""
        found = self._http.post("/artifacts/filter", json={"sort": "UPDATED_DESC", "limit": 200}).json()
        return next(str(a["id"]) for a in found if a["flow_run_id"] == run_id and a["type"] == "markdown")

    def percent(self, run_id: str) -> float:
        """How far a run is."""
        found = self._http.post("/artifacts/filter", json={"sort": "UPDATED_DESC", "limit": 200}).json()
        return max((a["data"] for a in found if a["flow_run_id"] == run_id and a["type"] == "progress"), default=0.0)


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=str(CHROMIUM))
    parser.add_argument("--trials", type=int, default=10)
    chosen = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with Sandbox(settings=SETTINGS) as sandbox, sync_playwright() as playwright:
        sandbox.prefect("work-pool", "create", "gpus", "--type", "gpu")
        sandbox.start_worker("gpus", name="decision", wait=False).wait_for_output("Serving pool")
        deploy = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file"]
        _in(REPOSITORY, sandbox, [*deploy, str(REPOSITORY / "deployments" / "prefect.yaml")])
        api = Api(sandbox.api_url)
        folder = str(sandbox.folder / "sweep")
        sweep = api.start("automl-sweep", trials=chosen.trials, parallel=4, directory=folder, effort=25.0)
        browser = playwright.chromium.launch(executable_path=chosen.chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        ui = sandbox.ui_url

        # Two train, two wait; one of the trainings is far enough to have a curve.
        def scene() -> dict[str, Any] | None:
            training, waiting = api.runs("Training"), api.runs("AwaitingGpu")
            far = [run for run in training if run["name"].startswith("mlp") and 8 < api.percent(run["id"]) < 50]
            return far[0] if far and waiting else None

        training = wait_until(scene, what="a run to train while another waits", timeout_s=400.0, every_s=0.2)
        waiting = api.runs("AwaitingGpu")[0]
        shoot(page, f"{ui}/runs/flow-run/{training['id']}", "run-training.png", 900, tab="Artifacts")
        shoot(page, f"{ui}/runs/flow-run/{waiting['id']}", "run-waiting.png", 760, tab="Details")
        shoot(page, f"{ui}/artifacts/artifact/{api.losses(training['id'])}", "losses.png", 720)
        shoot(page, f"{ui}/work-pools/work-pool/gpus", "work-pool.png", 720)
        wait_until(lambda: any(run["id"] == sweep for run in api.runs("Completed", "Failed", "Crashed")),
                   what="the end of the search", timeout_s=900.0, every_s=1.0)  # fmt: skip
        time.sleep(2.0)
        with History(f"sqlite:///{sandbox.home / 'gpu' / 'history.db'}") as history:
            rows = history.rows()
        write_timeline(rows, png=IMAGES / "timeline.png", title="A model search: what two virtual devices did")
        browser.close()


def shoot(page: Page, url: str, name: str, height: int, *, tab: str | None = None) -> None:
    """Open a page, and a tab on it, let it come to rest, and take its picture."""
    page.set_viewport_size({"width": 1280, "height": height})
    page.goto(url)
    page.wait_for_load_state("load")
    if tab:
        page.get_by_text(tab, exact=True).first.click()
    time.sleep(2.0)  # Prefect's pages go on asking for data: they are never idle
    page.screenshot(path=IMAGES / name)
    print(f"{name}: {(IMAGES / name).stat().st_size / 1024:.0f} KiB", flush=True)


def _in(folder: Path, sandbox: Sandbox, command: list[str]) -> None:
    before = Path.cwd()
    os.chdir(folder)
    sandbox.env["PWD"] = str(folder)
    inside, sandbox.folder = sandbox.folder, folder
    try:
        sandbox.run(command)
    finally:
        sandbox.folder = inside
        os.chdir(before)


if __name__ == "__main__":
    main()
