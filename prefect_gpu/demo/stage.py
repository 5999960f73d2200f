"""The demo's own Prefect: server, pool, worker, deployments, and what they leave behind."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx

import prefect_gpu
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError, undisturbed, wait_until
from prefect_gpu.storage.row import HistoryRow

if TYPE_CHECKING:
    from prefect_gpu.runtime.launch.records import RunRecord
    from prefect_gpu.storage.history import History

POOL = "gpus"
DEVICES = 2
REPOSITORY = Path(prefect_gpu.__file__).parents[1]
DEPLOYMENTS = REPOSITORY / "deployments" / "prefect.yaml"

_PATIENCE_S = 60.0
_ANSWERS_S = 150.0  # on SQLite, Prefect's server sometimes answers nobody for a minute
_PRELOAD = "sklearn.datasets,sklearn.neural_network,sklearn.pipeline,xgboost,optuna"
_TO_DEPLOY = ("prefect.main", "prefect.cli.deploy._core", "prefect.artifacts", "prefect_gpu.training", "pydantic.v1")


class Stage:
    """Server, worker and deployments in a sandbox. Closing it stops everything.

    The worker declares virtual devices even where there are GPUs: the demo must not disturb what runs on them, and
    its trainings are scikit-learn's and XGBoost's on the CPU.

    Args:
        settings: More environment variables for everything.
        host: The address that the server listens on.
        folder: Where everything goes; a temporary one by default.
    """

    def __init__(
        self, settings: Mapping[str, str] | None = None, host: str = "127.0.0.1", folder: Path | None = None
    ) -> None:
        self._sandbox = Sandbox(
            settings={
                "CUDA_VISIBLE_DEVICES": "",
                "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": str(DEVICES),
                "PREFECT_INTEGRATIONS_GPU_PRELOAD": _PRELOAD,
                # A preloaded numpy starts a thread for each core of the machine, and a run gets one or two of them.
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **(settings or {}),
            },
            folder=folder,
            host=host,
        )
        self.ui_url = self._sandbox.ui_url
        self._worker: Process | None = None
        self._deploying: Process | None = None
        self._state_dir = self._sandbox.home / "gpu"
        self._history: History | None = None
        # Without the machine's proxies: everything is on this machine.
        self._http = httpx.Client(base_url=self._sandbox.api_url, timeout=30.0, trust_env=False)
        self._flows: dict[str, str] = {}

    # -- life -------------------------------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start the Prefect server, with a database of its own. Meanwhile, all that needs it is imported."""
        self._sandbox.start_server(meanwhile=self._get_ready)

    def _get_ready(self) -> None:
        self._worker = self._sandbox.start_worker(POOL, "--type", "gpu", held=True)
        self._deploying = self._sandbox.hold(
            ["--no-prompt", "deploy", "--all", "--prefect-file", str(DEPLOYMENTS)], "deployments",
            imports=(*_TO_DEPLOY, *_PRELOAD.split(",")), env={"PWD": str(REPOSITORY)}, cwd=REPOSITORY,
        )  # fmt: skip
        import prefect_gpu.runtime.launch.records
        import prefect_gpu.storage.history  # noqa: F401

    def start_worker(self) -> None:
        """Start the worker, which makes its pool if there is none."""
        assert self._worker is not None
        self._worker.let_go()
        wait_until(self._pool_exists, what=f"the work pool {POOL}", timeout_s=_PATIENCE_S)

    def _pool_exists(self) -> bool:
        self.check()
        return bool(self._post("/work_pools/filter", {}))

    def deploy(self) -> None:
        """Deploy all flows of the repository, as its users do.

        Raises:
            SandboxError: It failed, or the worker did not start meanwhile.
        """
        assert self._worker is not None and self._deploying is not None
        self._deploying.let_go()
        if self._deploying.popen.wait():
            raise SandboxError(f"The flows could not be deployed:\n{self._deploying.output[-3000:]}")
        try:
            self._worker.wait_for_output("Serving pool", timeout_s=120.0)
        except SandboxError as error:
            raise SandboxError(f"The worker did not start. {error}") from None

    def check(self) -> None:
        """Make sure that server and worker are alive.

        Raises:
            SandboxError: One has ended; the message holds the end of its log.
        """
        for name, process in (("server", self._sandbox._server), ("worker", self._worker)):
            if process is not None and process.popen.poll() is not None:
                raise SandboxError(f"The {name} ended unexpectedly (code {process.popen.returncode}).")

    def close(self) -> None:
        """Stop everything. A second Ctrl-C does not interrupt it: something would be left running."""
        with undisturbed():
            self._http.close()
            if self._history is not None:
                self._history.close()
            self._sandbox.close()

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of server and worker."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self._sandbox.folder.glob("*.log"):
            shutil.copy(log, folder)

    def log_ends(self, lines: int = 15) -> Iterator[tuple[str, str]]:
        """The name of each log and its last lines."""
        for log in sorted(self._sandbox.folder.glob("*.log")):
            end = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-lines:]
            if end:
                yield log.stem, "\n".join(end)

    # -- runs -------------------------------------------------------------------------------------------------------

    def submit(self, flow: str, job_variables: Mapping[str, Any] | None = None, **parameters: Any) -> str:
        """Start a run of the deployment that is named after the pool. Returns the run's id."""
        deployment = self._get(f"/deployments/name/{flow}/{POOL}")
        body: dict[str, Any] = {"parameters": parameters, "idempotency_key": uuid4().hex}  # asked twice, it is one run
        if job_variables:
            body["job_variables"] = dict(job_variables)
        run = self._post(f"/deployments/{deployment['id']}/create_flow_run", body)
        return str(run["id"])

    def runs(self) -> list[dict[str, Any]]:
        """All runs as Prefect has them, oldest first, except those that a schedule has planned."""
        found = self._post("/flow_runs/filter", {"sort": "START_TIME_ASC", "limit": 200})
        runs = [run for run in found if not run["auto_scheduled"]]
        for run in runs:
            run["flow_name"] = self._flow_name(run["flow_id"])
            run["name"] = readable_name(run["flow_name"], run["name"])
        return sorted(runs, key=lambda run: run["created"])

    def progress(self) -> dict[str, tuple[float, str]]:
        """For each run that has reported any: how far it is, in percent, and its losses as a curve of characters."""
        percent: dict[str, float] = {}
        curves: dict[str, str] = {}
        for artifact in self._post("/artifacts/filter", {"sort": "UPDATED_DESC", "limit": 200}):
            run = artifact["flow_run_id"] or ""
            if artifact["type"] == "progress":
                percent[run] = float(artifact["data"])
            elif str(artifact["key"]).endswith("-losses"):
                curves[run] = str(artifact["data"]).partition("\n")[0].replace("`", "")
        return {run: (percent.get(run, 0.0), curves.get(run, "")) for run in {*percent, *curves}}

    def devices(self) -> dict[str, tuple[str, ...]]:
        """The devices that each running run holds, all those of a gang."""
        return {run_id: record.placement.all_devices for run_id, record in self.records().items()}

    def records(self) -> dict[str, RunRecord]:
        """The worker's own records of the runs that it has launched and not finalised yet, by the run's id."""
        from prefect_gpu.runtime.launch.records import RecordStore

        found: dict[str, RunRecord] = {}
        with contextlib.suppress(OSError):  # a record that is removed while it is read
            found = {record.run_id: record for _, record in RecordStore(self._state_dir, POOL)}
        return found

    def history(self) -> list[HistoryRow]:
        """The finished runs, oldest first."""
        if self._history is None:
            from prefect_gpu.storage.history import History

            self._history = History(f"sqlite:///{self._state_dir / 'history.db'}", read_only=True)
        rows = sorted(self._history.rows(), key=lambda row: row.granted_at or row.ended_at)
        return [replace(row, run_name=readable_name(row.flow_name, row.run_name or row.run_id)) for row in rows]

    def save_history(self, path: Path) -> None:
        """Copy the history's database, whole, while the worker may have it open."""
        import sqlite3

        with (
            contextlib.closing(sqlite3.connect(self._state_dir / "history.db")) as source,
            contextlib.closing(sqlite3.connect(path)) as target,
        ):
            source.backup(target)

    def result(self, run_id: str) -> dict[str, Any]:
        """A run's state, with its message."""
        return dict(self._get(f"/flow_runs/{run_id}")["state"])

    def logs(self, run_id: str, lines: int = 15) -> str:
        """The last lines that a run logged."""
        query = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_DESC", "limit": lines}
        return "\n".join(entry["message"] for entry in reversed(self._post("/logs/filter", query)))

    # -- Prefect's API ----------------------------------------------------------------------------------------------
    # Plain HTTP: Prefect's own client would read the user's profile, and that is none of the demo's business.

    def _flow_name(self, flow_id: str) -> str:
        if flow_id not in self._flows:
            self._flows[flow_id] = str(self._get(f"/flows/{flow_id}")["name"])
        return self._flows[flow_id]

    def _get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask Prefect; again if it is too busy, as it says (503) while others write to its SQLite database."""
        end = time.monotonic() + _ANSWERS_S
        while True:
            try:
                response = self._http.request(method, path, json=body)
                if response.is_success:
                    return response.json()
                problem = f"Prefect answered {response.status_code} to {path}: {response.text[:500]}"
                final = response.status_code < 500
            except httpx.TransportError as error:
                problem, final = f"Prefect did not answer to {path}: {error!r}", False
            self.check()
            if final or time.monotonic() > end:
                raise SandboxError(problem)
            time.sleep(0.5)


def readable_name(flow_name: str, run_name: str) -> str:
    """What the run calls itself; a name that Prefect made up is preceded by the flow's.

    Example:
        >>> readable_name("train-mlp", "nifty-fox")
        'train-mlp (nifty-fox)'
    """
    return run_name if " " in run_name else f"{flow_name} ({run_name})"
