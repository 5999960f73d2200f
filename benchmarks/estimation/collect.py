"""Run real trainings one after the other and keep what each needed.

    python -m benchmarks.estimation.collect --runs 520 --out DIR [--seed 1] [--only PROGRAM ...]

Each run is a fresh process under the product's own controller, process driver, channel and history; only Prefect is
left out. DIR/runs.csv gets a row as each run ends; a run that has one is not run again, so that the collection can be
interrupted. PyTorch must be installed besides the development extras.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib.util
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.estimation.programs.spaces import SPACES, submission
from benchmarks.estimation.table import COLUMNS, PROGRESS
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch import Launch
from prefect_gpu.runtime.records import RunRecord
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome

_ROOT = Path(__file__).parents[2]
_MEMORY_BYTES = 20 << 30  # of the one virtual device; each run has it alone
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
_OTHERS, _OTHERS_S = 0.05, 0.1  # of a run's time, and seconds: if others used its core for longer, it is run again


class Collector:
    """Owns the runs (:class:`~prefect_gpu.runtime.controller.Host`): describes, starts and remembers them."""

    def __init__(self, out: Path, seed: int) -> None:
        self._out, self._seed = out, seed
        self._history = History(f"sqlite:///{out / 'history.db'}")
        self._reports: dict[str, ExitReport] = {}
        self._busy_s: dict[str, float] = {}  # of our cores, when a run began
        self.over = asyncio.Event()
        self.last_try = True  # whether a run that others disturb is kept nevertheless
        self.kept = False  # whether the run that is over has its row

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        _module, program, parameters = submission(int(run_id), self._seed)
        place = Placement("", (), ())
        record = RunRecord(run_id, run_id, "collect", "q", "", Request(), place, times={"submitted": time.time()})
        record.known = {"flow_name": program, "parameters": parameters, "device_kind": "virtual", "virtual": True}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host."""
        module, program, parameters = submission(int(run.run_id), self._seed)
        job = {"module": module, "program": program, "parameters": parameters, "notes": str(self._notes(run.run_id))}
        scratch = run.folder / "scratch"
        scratch.mkdir()
        (scratch / "job.json").write_text(json.dumps(job))
        env = environment(self._out)
        self._busy_s[run.run_id] = busy_seconds()
        argv = (sys.executable, "-m", "benchmarks.estimation.programs.execute", "job.json")
        return LaunchSpec(run.run_id, run.folder, argv, env, scratch)

    async def launched(self, run: Launch) -> None:
        """See Host."""

    def held(self, hold: Hold) -> None:
        """See Host."""

    def reported(self, run: Launch, kind: str) -> None:
        """See Host."""

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """See Host."""
        self._reports[run.run_id] = report
        return ("completed" if report.returncode == 0 else "failed"), "\n".join(report.tail)[-500:]

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See Host. Nobody is asked to leave here."""
        return False

    async def unlaunched(self, run: Launch) -> None:
        """See Host."""

    def released(self, run: Launch) -> None:
        """See Host."""
        self.over.set()

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""

    def record_history(self, row: HistoryRow) -> None:
        """See Host. A line of the table is made from the same values, unless others disturbed the run."""
        used_s = self._reports[row.run_id].cpu_seconds or 0.0
        wall_s = row.ended_at - (row.started_at or row.ended_at)
        others_s = max(0.0, busy_seconds() - self._busy_s[row.run_id] - used_s)
        self.kept = self.last_try or others_s <= _OTHERS * wall_s + _OTHERS_S
        words = f"{row.outcome}, {wall_s:.1f} s, others {others_s:.2f} s{'' if self.kept else ', again'}"
        print(f"{row.run_id} {row.flow_name:18} {words}", flush=True)
        if not self.kept:
            return
        self._history.record(row)
        notes = self._notes(row.run_id)
        ends = json.loads(notes.read_text()) if notes.exists() else []
        line = {
            "run_id": row.run_id,
            "program": row.flow_name,
            "parameters": json.dumps(row.parameters),
            "declared": json.dumps(row.features),
            "launching_s": row.prepared_s,
            "training_s": row.trained_s,
            "saving_s": row.saved_s,
            "steps": row.steps_done,
            "rss_peak_bytes": row.rss_peak_bytes,
            "cpu_mean": row.cpu_mean,
            "cpu_seconds": self._reports[row.run_id].cpu_seconds,
            "others_cpu_s": others_s,
            "wall_s": wall_s,
            "ended_at": row.ended_at,
            "outcome": row.outcome,
        }
        for percent, column in PROGRESS.items():
            line[column] = ends[math.ceil(len(ends) * percent / 100) - 1] if ends else None
        append(self._out / "runs.csv", {name: _short(value) for name, value in line.items()})

    def _notes(self, run_id: str) -> Path:
        return self._out / "notes" / f"{run_id}.json"


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def environment(out: Path) -> dict[str, str]:
    """Of the runs. As where somebody has trained before, modules are compiled, though not where they lie."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return env | _ONE_THREAD | {"PYTHONPATH": str(_ROOT), "PYTHONPYCACHEPREFIX": str(out / "pycache")}


def compile_modules(out: Path) -> None:
    """Import once what the programs import, so that the first runs are like the others."""
    for module in sorted({module for module, _space in SPACES.values()}):
        words = f"import prefect_gpu.training.client, benchmarks.estimation.programs.{module}"
        subprocess.run([sys.executable, "-c", words], env=environment(out), check=True)


def busy_seconds() -> float:
    """For how long the cores that we are bound to have been in use since the machine started, by anybody.

    Time that the host of a virtual machine took away (steal) counts too.
    """
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    fields = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # user, nice, system, then irq, softirq, steal; not idle and iowait
    ticks = sum(sum(map(int, found[1:4] + found[6:9])) for found in fields if found[0] in cores)
    return ticks / os.sysconf("SC_CLK_TCK")


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a CSV file, with the names of the columns if it is the first."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


async def collect(runs: int, out: Path, seed: int, only: set[str], tries: int = 4) -> None:
    """Run what has no row yet, one after the other; what others disturb, up to ``tries`` times."""
    (out / "notes").mkdir(parents=True, exist_ok=True)
    table = out / "runs.csv"
    done = {row["run_id"] for row in csv.DictReader(table.open())} if table.exists() else set()
    logger = logging.getLogger("collect")
    host = Collector(out, seed)
    node = Node("here", (Device("virtual-0", "virtual", _MEMORY_BYTES, virtual=True),), ())
    shutil.rmtree(out / "state", ignore_errors=True)
    controller = Controller(
        host,
        nodes=(node,),
        driver=ProcessDriver(warm=False, logger=logger),
        state_dir=out / "state",
        pool="collect",
        profile="fifo",
        logger=logger,
    )
    await controller.start()
    try:
        for number in range(runs):
            run_id = f"{number:04d}"
            if run_id in done or (only and submission(number, seed)[1] not in only):
                continue
            for left in reversed(range(tries)):
                host.last_try, host.kept = left == 0, False
                host.over.clear()
                controller.handle(ev.JobSubmitted(run_id, Request(), "q", time.time(), 0.0, run_id))
                await host.over.wait()
                if host.kept:
                    break
    finally:
        await controller.close()


def main() -> int:
    """Collect as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, required=True, help="how many there are to be in all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the table and the history")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(SPACES), help="only these programs")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("The collection needs PyTorch, which is not installed: pip install torch", file=sys.stderr)
        return 2
    out = options.out.absolute()
    compile_modules(out)
    asyncio.run(collect(options.runs, out, options.seed, set(options.only)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
