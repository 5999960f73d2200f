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
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._host.pool import ROOT, Pool, Run, module, virtual_node
from benchmarks.estimation.programs.spaces import SPACES, submission
from benchmarks.estimation.table import COLUMNS, PROGRESS
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow

_MEMORY_BYTES = 20 << 30  # of the one virtual device; each run has it alone
_HOUR_S = 3600.0  # the most that a run may take
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
_OTHERS, _OTHERS_S = 0.05, 0.1  # of a run's time, and seconds: if others used its core for longer, it is run again


class Collector(Pool):
    """A pool of one virtual device that remembers how busy the cores were when a run began."""

    def __init__(self, out: Path) -> None:
        shutil.rmtree(out / "state", ignore_errors=True)
        node = virtual_node(1, memory_bytes=_MEMORY_BYTES)
        super().__init__(out, (node,), profile="fifo", environment=environment(out), name="collect", deadline_s=_HOUR_S)
        self.busy_s = 0.0

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host. What a run leaves behind goes with its folder."""
        spec = await super().prepare(run)
        scratch = run.folder / "scratch"
        scratch.mkdir()
        self.busy_s = busy_seconds()
        return replace(spec, cwd=scratch, stream_output=True)


class Table:
    """What each run needed: in the history, and in a table."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._history = History(f"sqlite:///{out / 'history.db'}")

    def notes(self, run_id: str) -> Path:
        """Where a run notes when its steps end."""
        return self._out / "notes" / f"{run_id}.json"

    def record(self, kept: HistoryRow, cpu_seconds: float | None, others_s: float) -> None:
        """Add a run; both get their row from the same values."""
        self._history.record(kept)
        notes = self.notes(kept.run_id)
        ends = json.loads(notes.read_text()) if notes.exists() else []
        table_row = {
            "run_id": kept.run_id,
            "program": kept.flow_name,
            "parameters": json.dumps(kept.parameters),
            "declared": json.dumps(kept.features),
            "launching_s": kept.prepared_s,
            "training_s": kept.trained_s,
            "saving_s": kept.saved_s,
            "steps": kept.steps_done,
            "rss_peak_bytes": kept.rss_peak_bytes,
            "cpu_mean": kept.cpu_mean,
            "cpu_seconds": cpu_seconds,
            "others_cpu_s": others_s,
            "wall_s": _wall_s(kept),
            "ended_at": kept.ended_at,
            "outcome": kept.outcome,
        }
        for percent, column in PROGRESS.items():
            table_row[column] = ends[math.ceil(len(ends) * percent / 100) - 1] if ends else None
        append(self._out / "runs.csv", {name: _short(value) for name, value in table_row.items()})


def _wall_s(kept: HistoryRow) -> float:
    return kept.ended_at - (kept.started_at or kept.ended_at)


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def environment(out: Path) -> dict[str, str]:
    """Of the runs. As where somebody has trained before, modules are compiled, though not where they lie."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return env | _ONE_THREAD | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(out / "pycache")}


def compile_modules(out: Path) -> None:
    """Import once what the programs import, so that the first runs are like the others."""
    for name in sorted({name for name, _space in SPACES.values()}):
        words = f"import prefect_gpu.training.channel.client, benchmarks.estimation.programs.{name}"
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
    csv_file = out / "runs.csv"
    done = {row["run_id"] for row in csv.DictReader(csv_file.open())} if csv_file.exists() else set()
    table = Table(out)
    async with Collector(out) as pool:
        for number in range(runs):
            run_id = f"{number:04d}"
            module_name, program, parameters = submission(number, seed)
            if run_id in done or (only and program not in only):
                continue
            job = {"module": module_name, "program": program, "parameters": parameters}
            order = json.dumps({**job, "notes": str(table.notes(run_id))})
            known = {"flow_name": program, "parameters": parameters, "device_kind": "virtual", "virtual": True}
            run = Run(run_id, module("benchmarks.estimation.programs.execute", order), known=known)
            for left in reversed(range(tries)):
                pool.submit(run)
                [course] = await pool.over(run_id)
                kept = course.row
                assert kept is not None
                cpu_seconds = course.report.cpu_seconds if course.report is not None else None
                others_s = max(0.0, busy_seconds() - pool.busy_s - (cpu_seconds or 0.0))
                keep = left == 0 or others_s <= _OTHERS * _wall_s(kept) + _OTHERS_S
                words = f"{kept.outcome}, {_wall_s(kept):.1f} s, others {others_s:.2f} s{'' if keep else ', again'}"
                print(f"{run_id} {program:18} {words}", flush=True)
                if keep:
                    table.record(kept, cpu_seconds, others_s)
                    break


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
