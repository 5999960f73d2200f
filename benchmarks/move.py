"""How long is the pause when a run is moved, against what saving and loading its model take?

A real Prefect server, a real worker with its default profile (``adaptive``), two virtual devices, PyTorch preloaded.
A training shares its device with another run. When the other device is left, the scheduler evens the devices out by
itself and moves the training: it is asked for a checkpoint, stopped, and started on the other device as the same flow
run, through Prefect's engine.

    python -m benchmarks.move [--json] [--quick] [--repeats N] [--sizes MB ...]

*Pause*: from the event that makes the scheduler move the run (the checkpoint is asked for at once) until the next step
begins. *Save* and *load* are measured inside that same training: the ``report()`` that saves (writing, hashing,
flushing to the disk), and ``restore()`` (verifying) with the loading. *The rest* is therefore everything else: what was
left of the step, stopping the process, Prefect's states, starting the process and the engine, building the model.

Nothing is claimed of models below 400 MB: there the start of a process takes longer than saving and loading together.

Limits: steps take 0.1 s at least, and what is left of one counts as pause, although the training trains. A model that
is loaded is built without first values (PyTorch's ``skip_init``); one that draws them for nothing pauses for longer by
what that takes, 0.35 s for 400 MB on one core. Checkpoints are on the local disk; what was just written is read again
from the page cache. The worker does not learn from its history here, so that each move is decided for the same reason.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client

from benchmarks._claims import Claim, at_most, command_line, report
from benchmarks._host.pool import notes
from benchmarks._host.served import completed, deploy, served, settings
from benchmarks._host.waiting import until
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError
from prefect_gpu.scheduling.model.instructions import Move
from prefect_gpu.scheduling.record import replay

POOL = "gpus"
SIZES_MB = (50, 400, 1500)
ASKED = 1.5
CLAIMED_FROM_MB = 400  # with smaller models, the start of a process is longer than saving and loading together
_LEAST_STEP_S = 0.1
_SHARES = {"exclusive": False, "cpus": 1}  # with more cores come more threads, and other sums
_WARM_UP_S = 12.0
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Moved:
    """One move, in seconds.

    Attributes:
        pause_s: From the decision to the next step's begin.
        save_s: The report that saved.
        load_s: ``restore()`` and the loading.
        step_left_s: From the decision until the training saves.
        stop_s: From the saved checkpoint to the first line of the flow in the new process.
        build_s: From the first line to ``restore()``, and building the model.
        again: Steps that were done twice.
        same: Whether the result is that of the undisturbed run.
        lost: Steps that are missing.
    """

    pause_s: float
    save_s: float
    load_s: float
    step_left_s: float
    stop_s: float
    build_s: float
    again: int
    lost: int
    same: bool

    @property
    def ratio(self) -> float:
        """Of the pause to saving and loading."""
        return self.pause_s / (self.save_s + self.load_s)


class Bench:
    """A sandbox with a worker, two runs that keep company, and trainings that are moved.

    Args:
        sandbox: With a server and the pool.
        worker: Serves the pool.
    """

    def __init__(self, sandbox: Sandbox, client: PrefectClient, worker: Process, state: Path) -> None:
        self._folder, self._client, self._worker, self._state = sandbox.folder, client, worker, state
        self._deployments: dict[str, UUID] = {}
        self._company: dict[str, Path] = {}  # by device: the file whose existence ends the run there
        self._count = 0
        self._expected: dict[int, str] = {}

    async def deploy(self) -> None:
        """Make the flows known."""
        for name in ("fit", "company"):
            self._deployments[name] = await deploy(Path(__file__).with_name("_move_flow.py"), name, POOL, name=name)

    async def keep_company(self) -> None:
        """Have one run on each device that the training will share one with."""
        while len(self._company) < 2:
            self._count += 1
            marks, released = (self._folder / f"{word}-{self._count}" for word in ("company", "until"))
            await self._submit("company", {"marks": str(marks), "until": str(released)}, {"gpu_memory": "512MiB"})
            await until(partial(_is_written, marks), "a run on each device")
            device = marks.read_text()
            if device in self._company:
                raise SandboxError(f"{device} has two runs, and the other device none")
            self._company[device] = released

    async def train(self, megabytes: int, steps: int, *, move: bool) -> Moved | None:
        """One training. Without ``move`` it is left alone, and its result is what all others must have."""
        self._count += 1
        file = self._folder / f"marks-{self._count}"
        parameters = {"megabytes": megabytes, "steps": steps, "least_step_s": _LEAST_STEP_S, "marks": str(file)}
        run_id = await self._submit("fit", parameters, {"gpu_memory": "7GiB", "preemptible": True})
        other = ""
        if move:
            await until(lambda: _steps(notes(file)) >= max(3, steps // 4), "the training's first steps")
            other = next(device for device in self._company if device != notes(file)[0]["device"])
            self._company.pop(other).touch()
        await completed(self._client, self._worker, [run_id], deadline_s=_DEADLINE_S, every_s=0.5)
        # Its device is free only when its process is gone, too.
        await until(lambda: f'"JobEnded", "job": "{run_id}"' in self._log(), "the end of the training's process")
        marks = notes(file)
        [digest] = [mark["digest"] for mark in marks if mark["what"] == "result"]
        if not move:
            self._expected[megabytes] = digest
            return None
        return self._moved(run_id, marks, steps, digest == self._expected[megabytes])

    def _moved(self, run_id: UUID, marks: list[dict[str, Any]], steps: int, same: bool) -> Moved:
        pids = list(dict.fromkeys(mark["pid"] for mark in marks))
        if len(pids) != 2:
            raise SandboxError(f"the training had {len(pids)} processes:\n{self._worker.output[-3000:]}")
        first, second = ([mark for mark in marks if mark["pid"] == pid] for pid in pids)
        if first[0]["device"] == second[0]["device"]:
            raise SandboxError("the training was started again on the same device")
        saves = next(mark for mark in first if mark["what"] == "saves")
        reports = [mark for mark in first if mark["what"] == "reports" and mark["at"] <= saves["at"]][-1]
        saved = next(
            (mark["at"] for mark in first if mark["what"] == "has reported" and mark["at"] > saves["at"]), None
        )
        at = {mark["what"]: mark["at"] for mark in reversed(second)}  # the first of each kind
        if saved is None:
            raise SandboxError("the training was stopped before it could note that it had saved")
        building = at["is built"] - at["is verified"]
        decided = self._decided(run_id)
        done = [mark["step"] for mark in marks if mark["what"] == "step"]
        return Moved(
            pause_s=at["step"] - decided,
            save_s=saved - reports["at"],
            load_s=at["restored"] - at["restores"] - building,
            step_left_s=reports["at"] - decided,
            stop_s=at["first line"] - saved,
            build_s=at["restores"] - at["first line"] + building,
            again=len(done) - len(set(done)),
            lost=len(set(range(steps)) - set(done)),
            same=same,
        )

    def _decided(self, run_id: UUID) -> float:
        """When the scheduler moved the run: its log of events is replayed, which gives its decisions again."""
        lines = self._log().splitlines()
        moves = [
            at for at, _, made in replay(lines) for one in made if isinstance(one, Move) and one.job == str(run_id)
        ]
        if len(moves) != 1:
            raise SandboxError(f"the scheduler moved the training {len(moves)} times")
        return moves[0]

    def _log(self) -> str:
        return (self._state / "events" / f"{POOL}.jsonl").read_text()

    async def _submit(self, name: str, parameters: dict[str, Any], more: dict[str, Any]) -> UUID:
        run = await self._client.create_flow_run_from_deployment(
            self._deployments[name], parameters=parameters, job_variables=_SHARES | more
        )
        return run.id


def _is_written(file: Path) -> bool:
    return file.exists() and file.read_text() != ""


def _steps(marks: list[dict[str, Any]]) -> int:
    return sum(mark["what"] == "has reported" for mark in marks)


async def measure(
    sandbox: Sandbox, worker: Process, state: Path, sizes: list[int], repeats: int
) -> dict[int, list[Moved]]:
    """All moves by size in MB: an undisturbed training of each size, then the sizes in turns."""
    found: dict[int, list[Moved]] = {size: [] for size in sizes}
    await asyncio.sleep(_WARM_UP_S)
    async with get_client() as client:
        bench = Bench(sandbox, client, worker, state)
        await bench.deploy()
        await bench.keep_company()
        for size in sizes:
            await bench.train(size, steps_of(size), move=False)
        for _ in range(repeats):
            for size in sizes:
                await bench.keep_company()
                moved = await bench.train(size, steps_of(size), move=True)
                assert moved is not None
                found[size].append(moved)
                print(
                    f"{size:>5} MB: pause {moved.pause_s:.2f} s = {moved.ratio:.2f} x (save {moved.save_s:.2f} + load "
                    f"{moved.load_s:.2f}); step {moved.step_left_s:.2f}, to the first line {moved.stop_s:.2f}, build "
                    f"{moved.build_s:.2f}",
                    file=sys.stderr,
                )
    return found


def steps_of(megabytes: int) -> int:
    """Enough for a few seconds before and after the move."""
    return 40 if megabytes < 200 else 24 if megabytes < 1000 else 16


def claims_of(found: dict[int, list[Moved]]) -> list[Claim]:
    """The median of each size that something is claimed of; results and steps of all moves are counted."""
    everything = [one for moves in found.values() for one in moves]
    return [
        *(
            at_most(f"{size} MB: pause / (save + load)", statistics.median(one.ratio for one in moves), ASKED)
            for size, moves in found.items()
            if size >= CLAIMED_FROM_MB
        ),
        at_most("steps that are missing", sum(one.lost for one in everything), 0),
        at_most("results unlike the undisturbed run's", sum(not one.same for one in everything), 0),
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: one move of 400 MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES_MB), metavar="MB", help="state, in 10^6 bytes"
    )
    parser.add_argument("--keep", type=Path, help="keep everything in this folder, which must not exist")
    options = parser.parse_args()
    sizes, repeats = options.sizes, options.repeats
    if options.quick:
        sizes, repeats = [400], 1
    with served({POOL: "gpu"}, folder=options.keep) as sandbox:
        state = sandbox.folder / "state"
        env = settings(virtual_devices="2", preload="torch", state_dir=str(state), learn="false")
        worker = sandbox.start_worker(POOL, env=env)
        try:
            found = asyncio.run(measure(sandbox, worker, state, sizes, repeats))
        except BaseException:
            print(worker.output[-4000:], file=sys.stderr)
            raise
    names = ("pause_s", "save_s", "load_s", "step_left_s", "stop_s", "build_s")
    details = {
        "median": {
            size: {name: round(statistics.median(getattr(one, name) for one in moves), 3) for name in names}
            for size, moves in found.items()
        },
        "median_ratio": {
            size: round(statistics.median(one.ratio for one in moves), 2) for size, moves in found.items()
        },
        "steps_done_twice": sum(one.again for moves in found.values() for one in moves),
        "load_of_the_machine": os.getloadavg()[0],
        "all": {size: [asdict(one) for one in moves] for size, moves in found.items()},
    }
    return report("move", claims_of(found), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
