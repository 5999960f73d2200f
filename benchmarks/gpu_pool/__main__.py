"""Does the pool, with Prefect, its server and a worker, do on a GPU what it does on virtual devices?

    python -m benchmarks.gpu_pool [--json] [--quick] [--virtual | --mps] [--part NAME ...] [--logs FOLDER]

Each part runs flows that a person would write (``benchmarks/gpu_pool/flows.py``), in the machine's first GPU:

- ``starts``: equal trainings one after the other: from the grant of the GPU to the first step, and from the last step
  of one to the first of the next; what the history keeps of their memory, use and energy; and whether a run of five
  times the steps starts, too.
- ``interrupted``: the same training left alone, suspended and resumed, killed and tried again: what it has trained is
  compared to the last bit.
- ``shared``: a run that wants more than it was granted, beside one that trains, in each framework that is installed:
  the framework refuses it, its next try has the GPU alone, and the neighbour's losses are those that it has alone.
- ``together``: four trainings at once, in a quarter of the GPU each. How long they take is told without a claim.
- ``loaders``: batches from processes of a ``DataLoader``, into pinned memory.

With ``--mps``, NVIDIA's Multi-Process Service serves them meanwhile, as a daemon that this program starts and ends. The
driver then holds a run to its part, whatever it asks with.

What it cannot tell: one GPU is not several, and trainings of seconds are not those of days. Speed is told without a
claim, but for the gap between runs where the next one was prepared in time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.flow_runs import aresume_flow_run, asuspend_flow_run

from benchmarks._claims import Claim, at_most, command_line, report
from benchmarks._host.pool import notes
from benchmarks._host.served import completed, deploy, recorded, served, settings
from benchmarks._host.waiting import until
from benchmarks.gpu.machine import Machine, this_machine
from prefect_gpu.lab.sandbox import Process
from prefect_gpu.storage.row import HistoryRow

POOL = "gpus"
_DEADLINE_S = 240.0
_GRANTED_MIB, _WANTED_MIB = 4096, 12_288
_VIRTUAL_GRANTED_MIB, _VIRTUAL_WANTED_MIB = 1024, 3072
_GAP_S = 0.1


@dataclass
class Found:
    """What a part has found: claims, and figures for the JSON."""

    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def claim(self, name: str, holds: bool) -> None:
        """Something that is so, or is not."""
        self.claims.append(Claim(name, float(holds), "== 1", holds))


@dataclass
class Bench:
    """A pool on this machine's device, and runs in it."""

    machine: Machine
    folder: Path
    client: PrefectClient
    worker: Process
    quick: bool
    mps: bool = False
    deployments: dict[str, UUID] = field(default_factory=dict)
    _count: int = 0

    async def submit(self, flow: str, /, *, asks: dict[str, Any] | None = None, **parameters: Any) -> tuple[UUID, Path]:
        """A run of the flow, and the file that it writes its marks into."""
        self._count += 1
        file = self.folder / f"marks-{self._count}"
        file.touch()
        run = await self.client.create_flow_run_from_deployment(
            self.deployments[flow], parameters={"marks": str(file), **parameters}, job_variables=asks or {}
        )
        return run.id, file

    async def complete(self, *runs: UUID) -> None:
        """Wait until they have completed."""
        await completed(self.client, self.worker, list(runs), deadline_s=_DEADLINE_S, every_s=0.2)

    async def rows(self, *runs: UUID) -> list[HistoryRow]:
        """The history's rows of these runs, all of their tries."""
        return await recorded(self.folder / "state", list(runs), self.worker)

    async def done(self, flow: str, /, **more: Any) -> tuple[HistoryRow, list[dict[str, Any]]]:
        """The row and the marks of one run that is alone."""
        run, file = await self.submit(flow, **more)
        await self.complete(run)
        return (await self.rows(run))[-1], notes(file)


def _steps(marks: list[dict[str, Any]]) -> list[float]:
    return [mark["at"] for mark in marks if mark["what"] == "step"]


def _trains(file: Path) -> bool:
    return bool(_steps(notes(file)))


def _at(marks: list[dict[str, Any]], what: str) -> float:
    return next(float(mark["at"]) for mark in marks if mark["what"] == what)


def _losses(marks: list[dict[str, Any]]) -> dict[int, float]:
    return {mark["step"]: mark["loss"] for mark in marks if mark["what"] == "step"}


def _result(marks: list[dict[str, Any]]) -> str:
    return "".join(str(mark["digest"]) for mark in marks if mark["what"] == "result")


async def starts(bench: Bench) -> Found:
    """Equal trainings one after the other, and then a longer one."""
    steps, count = (30, 3) if bench.quick else (60, 6)
    first, marks = await bench.done("fit", steps=steps)
    submitted = [await bench.submit("fit", steps=steps) for _ in range(count)]
    await bench.complete(*(run for run, _ in submitted))
    rows = sorted(await bench.rows(*(run for run, _ in submitted)), key=lambda row: row.granted_at or 0.0)
    told = sorted((notes(file) for _, file in submitted), key=lambda one: _steps(one)[0])
    gaps = [_steps(after)[0] - _at(before, "trained") for before, after in itertools.pairwise(told)]
    long, longer = await bench.done("fit", steps=5 * steps)
    found = Found()
    prepared = [gap for gap, row in zip(gaps, rows[1:], strict=True) if row.prepared_behind]
    if prepared:
        found.claims.append(
            at_most("median gap between runs where the next one was prepared, s", statistics.median(prepared), _GAP_S)
        )
    found.claim(
        "a run of five times the steps completes", long.outcome == "completed" and len(_steps(longer)) == 5 * steps
    )
    found.figures = {
        "first_from_grant_to_first_step_s": _steps(marks)[0] - (first.granted_at or 0.0),
        "gaps_s": gaps,
        "prepared": [bool(row.prepared_behind) for row in rows],
        "rows": [_of_row(row) for row in [first, *rows, long]],
    }
    return found


def _of_row(row: HistoryRow) -> dict[str, Any]:
    names = (
        "outcome",
        "prepared_s",
        "trained_s",
        "saved_s",
        "device_memory_peak_bytes",
        "device_util_mean",
        "energy_j",
    )
    return {name: getattr(row, name, None) for name in names}


async def interrupted(bench: Bench) -> Found:
    """What is trained with an interruption is what is trained without, to the last bit."""
    steps, asks = (40 if bench.quick else 80), {"preemptible": True, "cpus": 1}
    _, marks = await bench.done("fit", steps=steps, asks=asks)
    expected = _result(marks)
    _, again = await bench.done("fit", steps=steps, asks=asks)
    found = Found()
    found.claim("the same training has the same result twice", _result(again) == expected)

    run, file = await bench.submit("fit", steps=steps, asks=asks)
    await until(lambda: len(_steps(notes(file))) >= steps // 4, "some steps")
    asked = time.time()
    await asuspend_flow_run(flow_run_id=run)
    other, other_file = await bench.submit("fit", steps=3)
    await until(partial(_trains, other_file), "another run to train")
    found.figures["from_suspension_to_the_other_runs_first_step_s"] = _steps(notes(other_file))[0] - asked
    await bench.complete(other)
    await aresume_flow_run(run)
    await bench.complete(run)
    begins = [mark["restored"] for mark in notes(file) if mark["what"] == "begins"]
    found.claim("a suspended run carries on", begins == [False, True])
    found.claim("a suspended run has the result of the undisturbed one", _result(notes(file)) == expected)

    run, file = await bench.submit("fit", steps=steps, asks={**asks, "retries": 1})
    await until(lambda: len(_steps(notes(file))) >= steps // 4, "some steps")
    killed = next(mark["pid"] for mark in notes(file))
    os.kill(killed, signal.SIGKILL)
    at = time.time()
    await bench.complete(run)
    after = [moment for moment in _steps(notes(file)) if moment > at]
    found.figures["from_kill_to_next_step_s"] = after[0] - at if after else None
    found.figures["steps_of_killed"] = len(_steps(notes(file)))
    found.claim("a killed run has the result of the undisturbed one", _result(notes(file)) == expected)
    return found


async def shared(bench: Bench) -> Found:
    """A run that wants more than its part, beside one that trains."""
    virtual = bench.machine.virtual
    granted, wanted = (_VIRTUAL_GRANTED_MIB, _VIRTUAL_WANTED_MIB) if virtual else (_GRANTED_MIB, _WANTED_MIB)
    asks = {"exclusive": False, "gpu_memory": f"{granted}MiB", "cpus": 1}
    steps = 100 if bench.quick else 200
    frameworks = ["torch"] if virtual else [one for one in ("torch", "jax", "cupy") if importlib.util.find_spec(one)]
    frameworks += ["cuda"] if bench.mps else []
    _, alone = await bench.done("fit", steps=steps, asks=asks)
    found = Found()
    for framework in frameworks:
        quiet, quiet_file = await bench.submit("fit", steps=steps, asks=asks)
        await until(partial(_trains, quiet_file), "the neighbour's first step")
        greedy, greedy_file = await bench.submit("hungry", mebibytes=wanted, framework=framework, asks=asks)
        await bench.complete(quiet, greedy)
        marks = notes(greedy_file)
        refused = [mark for mark in marks if mark["what"] == "refused"]
        found.claim(f"{framework}: a run is refused more than it was granted", len(refused) == 1)
        found.claim(f"{framework}: alone, it gets it", sum(mark["what"] == "got" for mark in marks) == 1)
        same = _losses(notes(quiet_file)) == _losses(alone)
        found.claim(f"{framework}: the neighbour's losses are those that it has alone", same)
        found.figures[framework] = {"refusals": [mark["error"] for mark in refused]}
    return found


async def together(bench: Bench) -> Found:
    """Four trainings at once."""
    count, virtual = 4, bench.machine.virtual
    part = 900 << 20 if virtual else bench.machine.device.memory_bytes // count - (1 << 30)
    steps, batch = (20, 32) if virtual else (100 if bench.quick else 300, 512)
    asks = {"exclusive": False, "gpu_memory": f"{part >> 20}MiB", "cpus": 1}
    _, alone = await bench.done("fit", steps=steps, step_s=0.0, batch=batch, asks=asks)
    submitted = [await bench.submit("fit", steps=steps, step_s=0.0, batch=batch, asks=asks) for _ in range(count)]
    await bench.complete(*(run for run, _ in submitted))
    told = [notes(file) for _, file in submitted]
    found = Found()
    found.figures = {
        "one_alone_s": _at(alone, "trained") - _steps(alone)[0],
        "four_at_once_s": max(_at(one, "trained") for one in told) - min(_steps(one)[0] for one in told),
        "rows": [_of_row(row) for row in await bench.rows(*(run for run, _ in submitted))],
    }
    found.claim("losses are those that each has alone", all(_losses(one) == _losses(alone) for one in told))
    return found


async def loaders(bench: Bench) -> Found:
    """The processes of a DataLoader end as they should."""
    run, file = await bench.submit("loads", steps=20 if bench.quick else 60)
    await bench.complete(run)
    chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    log = "\n".join(line.message for line in await bench.client.read_logs(chosen))
    found = Found(figures={"log": log[-1500:]})
    found.claim("a run whose batches come from processes completes", bool(notes(file)))
    found.claim("none of its processes ends with an error", "exited unexpectedly" not in log and "exit code" not in log)
    return found


PARTS: dict[str, Callable[[Bench], Awaitable[Found]]] = {
    "starts": starts,
    "interrupted": interrupted,
    "shared": shared,
    "together": together,
    "loaders": loaders,
}


async def _measure(bench: Bench, names: list[str]) -> dict[str, Found | str]:
    file = Path(__file__).with_name("flows.py")
    for flow in ("fit", "hungry", "loads"):
        bench.deployments[flow] = await deploy(file, flow, POOL, name=f"{POOL}-{flow}")
    found: dict[str, Found | str] = {}
    for name in names:
        began = time.monotonic()
        try:
            found[name] = part = await PARTS[name](bench)
        except Exception as error:  # the others are measured all the same
            found[name] = f"{type(error).__name__}: {error}"
            print(f"-- {name} failed: {found[name]}", file=sys.stderr)
            continue
        told = [f"{'holds' if one.holds else 'FAILS'}: {one.name}" for one in part.claims]
        print(
            f"-- {name}, {time.monotonic() - began:.0f} s",
            *told,
            json.dumps(part.figures),
            sep="\n   ",
            file=sys.stderr,
        )
    return found


async def _main(machine: Machine, folder: Path, worker: Process, options: argparse.Namespace) -> dict[str, Found | str]:
    async with get_client() as client:
        bench = Bench(machine, folder, client, worker, options.quick, options.mps)
        return await _measure(bench, options.part or list(PARTS))


@contextlib.contextmanager
def mps(folder: Path) -> Iterator[dict[str, str]]:
    """An MPS daemon of its own as long as the block lasts, and the environment of whoever is to use it.

    Raises:
        FileNotFoundError: This machine has no ``nvidia-cuda-mps-control``.
    """
    folder.mkdir()
    told = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    environ = {**os.environ, **told}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environ, check=True)
    try:
        yield told
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environ, check=False)


def main() -> int:
    """Run the parts; the exit code is 1 when a claim does not hold or a part failed."""
    parser = command_line(__doc__, quick="fewer and shorter trainings")
    parser.add_argument("--virtual", action="store_true", help="use a virtual device even if there is a GPU")
    parser.add_argument("--mps", action="store_true", help="with NVIDIA's Multi-Process Service")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--logs", type=Path, help="folder for the logs of the server and the worker")
    options = parser.parse_args()
    machine = this_machine(virtual=options.virtual)
    print(f"Measuring {machine.words}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-pool-")))
        daemon = stack.enter_context(mps(folder / "mps")) if options.mps else {}
        sandbox = stack.enter_context(served({POOL: "gpu"}, folder=folder / "sandbox"))
        env = settings(preload="torch", state_dir=str(sandbox.folder / "state"), virtual_devices="1")
        env |= {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        env |= {"CUDA_VISIBLE_DEVICES": "" if machine.virtual else machine.device.id}
        worker = sandbox.start_worker(POOL, env=env | daemon)
        try:
            found = asyncio.run(_main(machine, sandbox.folder, worker, options))
        finally:
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                for log in [*sandbox.folder.glob("*.log"), *(sandbox.folder / "state").glob("runs/*/*output*")]:
                    shutil.copy(log, options.logs)
    done = {name: part for name, part in found.items() if isinstance(part, Found)}
    failed = {name: why for name, why in found.items() if isinstance(why, str)}
    details = {
        "device": machine.words,
        "virtual": machine.virtual,
        "mps": options.mps,
        "parts": {name: part.figures for name, part in done.items()},
        "failed": failed,
    }
    code = report("gpu_pool", [one for part in done.values() for one in part.claims], details, as_json=options.json)
    return 1 if failed else code


if __name__ == "__main__":
    sys.exit(main())
