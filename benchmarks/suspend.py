"""How long is a device held by a run that its user has suspended, beside what saving the run takes?

A real Prefect server, a real worker with its default profile, one virtual device. A training in NumPy is suspended by
Prefect's own function (``suspend_flow_run``, what its UI and ``prefect flow-run suspend`` do) and resumed by it, too.

    python -m benchmarks.suspend [--json] [--quick] [--repeats N] [--megabytes MB]

*Held*: from the moment before Prefect's API is asked until the scheduler has the device back (``JobEnded`` in the
worker's log of events): the run's process, and all that it started, is gone. *Save*: the ``report()`` that saves,
inside that training: writing, hashing, flushing to the disk. The claim is about what is left of *held* without *save*:
Prefect's change of state, its event to the worker, the rest of the step (0.1 s at least), and the end of the process.
Then another run has to get the device, before the first one is resumed. Once it has ended, what it has trained is
compared, to the last bit, with what the same training came to that nobody suspended: all of its weights and momentum,
of the size that was asked for.

Limits: what is left of a step counts against us; a training with longer steps holds its device for up to one more.
Checkpoints are on the local disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.flow_runs import aresume_flow_run, asuspend_flow_run

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks._host.pool import notes
from benchmarks._host.served import completed, deploy, served, settings
from benchmarks._host.waiting import until
from prefect_gpu.lab.sandbox import Process, SandboxError

POOL = "gpus"
ASKED_S = 0.5
_STEPS, _LEAST_STEP_S = 60, 0.1
_FIRST, _LATER = 3, 2  # steps after which the first run is suspended, and so many more are each later one's
_DEADLINE_S = 120.0
_ASKED_FOR = {"preemptible": True, "gpus": 1, "cpus": 1}  # with more cores come more threads, and other sums


@dataclass(frozen=True)
class Suspended:
    """One suspension, in seconds.

    Attributes:
        held_s: From the question to Prefect until the device was free.
        answered_s: Until Prefect had answered.
        known_s: Until the worker knew, and asked the training to save.
        begins_to_save_s: Until the training began to save.
        save_s: The report that saved.
        stop_s: From then until the device was free.
        restored: Whether the run carried on from its checkpoint, and not anew.
        same: Whether the result is that of the undisturbed run.
    """

    held_s: float
    answered_s: float
    known_s: float
    begins_to_save_s: float
    save_s: float
    stop_s: float
    restored: bool
    same: bool

    @property
    def beyond_s(self) -> float:
        """For how long the device was held beyond what saving took."""
        return self.held_s - self.save_s


class Bench:
    """Trainings that are suspended.

    Args:
        events: The worker's log of events.
    """

    def __init__(self, folder: Path, client: PrefectClient, worker: Process, events: Path, megabytes: int) -> None:
        self._folder, self._client, self._worker, self._events = folder, client, worker, events
        self._megabytes, self._count = megabytes, 0
        self.deployment: UUID | None = None

    async def undisturbed(self) -> str:
        """The result of a training that nobody suspends."""
        run, file = await self._submit(_STEPS)
        await self._complete(run)
        return _result(notes(file))

    async def suspended(self, expected: str, after: int) -> Suspended:
        """One training that is suspended after some steps, and resumed when another run has had its device."""
        run, file = await self._submit(_STEPS)
        await until(lambda: _reports(file) >= after, "the training's first steps")
        asked = time.time()
        await asuspend_flow_run(flow_run_id=run)
        answered = time.time()
        await until(lambda: self._ended_at(run) is not None, "the device to be free")
        other, others_file = await self._submit(1)
        await until(lambda: bool(notes(others_file)), "another run to have the device")
        free = self._ended_at(run)
        assert free is not None
        marks = notes(file)
        saves = next(mark["at"] for mark in marks if mark["what"] == "saves" and mark["at"] > asked)
        begins = max(mark["at"] for mark in marks if mark["what"] == "reports" and mark["at"] <= saves)
        # A process that is killed right after it has saved may not get to say so: then it had saved by its end.
        done = [mark["at"] for mark in marks if mark["what"] == "has reported"]
        saved = next((at for at in done if at > begins), free)
        await self._complete(other)
        await aresume_flow_run(run)
        await self._complete(run)
        marks = notes(file)
        return Suspended(
            held_s=free - asked,
            answered_s=answered - asked,
            known_s=await self._known_at(run) - asked,
            begins_to_save_s=begins - asked,
            save_s=saved - begins,
            stop_s=free - saved,
            restored=[mark["restored"] for mark in marks if mark["what"] == "begins"] == [False, True],
            same=_result(marks) == expected,
        )

    async def _submit(self, steps: int) -> tuple[UUID, Path]:
        self._count += 1
        file = self._folder / f"marks-{self._count}"
        file.touch()
        megabytes = self._megabytes if steps > 1 else 1
        parameters = {"megabytes": megabytes, "steps": steps, "least_step_s": _LEAST_STEP_S, "marks": str(file)}
        assert self.deployment is not None
        run = await self._client.create_flow_run_from_deployment(
            self.deployment, parameters=parameters, job_variables=_ASKED_FOR
        )
        return run.id, file

    async def _complete(self, run: UUID) -> None:
        await completed(self._client, self._worker, [run], deadline_s=_DEADLINE_S, every_s=0.2)

    async def _known_at(self, run: UUID) -> float:
        """When the worker wrote into the run's log that it suspends it."""
        chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
        while True:  # logs are sent now and then
            for line in await self._client.read_logs(chosen):
                if line.message.startswith("Suspending run"):
                    return line.timestamp.timestamp()
            await asyncio.sleep(0.2)

    def _ended_at(self, run: UUID) -> float | None:
        """When the scheduler heard that the run's process is gone and its devices are free."""
        for line in self._events.read_text().splitlines():
            if f'"JobEnded", "job": "{run}"' in line:
                return float(json.loads(line)["now"])
        return None


def _reports(file: Path) -> int:
    return sum(mark["what"] == "has reported" for mark in notes(file))


def _result(marks: list[dict[str, Any]]) -> str:
    found = [mark["digest"] for mark in marks if mark["what"] == "result"]
    if len(found) != 1:
        raise SandboxError(f"the training has {len(found)} results")
    return str(found[0])


async def measure(folder: Path, worker: Process, events: Path, repeats: int, megabytes: int) -> list[Suspended]:
    """One training that is left alone, and then those that are suspended."""
    found = []
    async with get_client() as client:
        bench = Bench(folder, client, worker, events, megabytes)
        bench.deployment = await deploy(Path(__file__).with_name("_suspend_flow.py"), "fit", POOL)
        expected = await bench.undisturbed()
        for number in range(repeats):
            one = await bench.suspended(expected, _FIRST + min(number * _LATER, _STEPS // 2))
            found.append(one)
            result = "the same result" if one.same else "ANOTHER RESULT"
            print(
                f"held {one.held_s:.2f} s, of which save {one.save_s:.2f}: beyond it {one.beyond_s:.2f} (Prefect's "
                f"answer {one.answered_s:.2f}, the worker knows {one.known_s:.2f}, until it saves "
                f"{one.begins_to_save_s:.2f}, the end {one.stop_s:.2f}); {result}",
                file=sys.stderr,
            )
    return found


def claims_of(found: list[Suspended], repeats: int, megabytes: int) -> list[Claim]:
    """What is asked of all suspensions."""
    beyond_s = statistics.median(one.beyond_s for one in found)
    same = f"results of {megabytes} MB that are the undisturbed run's to the last bit"
    return [
        at_most("from suspended to device free, without saving: median, s", beyond_s, ASKED_S),
        at_most("runs that began anew", sum(not one.restored for one in found), 0),
        at_least(same, sum(one.same for one in found), repeats),
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: one suspension")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=32, help="weights and momentum, in 10^6 bytes")
    options = parser.parse_args()
    with served({POOL: "gpu"}) as sandbox:
        state = sandbox.folder / "state"
        env = settings(virtual_devices="1", preload="numpy", state_dir=str(state), learn="false")
        env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # more threads would change the last bits of sums
        worker = sandbox.start_worker(POOL, env=env)
        events = state / "events" / f"{POOL}.jsonl"
        repeats = 1 if options.quick else options.repeats
        try:
            found = asyncio.run(measure(sandbox.folder, worker, events, repeats, options.megabytes))
        except BaseException:
            print(worker.output[-4000:], file=sys.stderr)
            raise
    names = ("held_s", "answered_s", "known_s", "begins_to_save_s", "save_s", "stop_s")
    details = {
        "median": {name: round(statistics.median(getattr(one, name) for one in found), 3) for name in names},
        "load_of_the_machine": os.getloadavg()[0],
        "all": [asdict(one) for one in found],
    }
    return report("suspend", claims_of(found, repeats, options.megabytes), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
