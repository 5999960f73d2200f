"""Is anything lost, done twice, leaked or touched, whatever happens around the pool?

A real Prefect server behind a proxy that cuts, delays, loses and answers 401, 404, 429, 500 and 503; two workers that
are killed, frozen, stopped and rolled back; a disk that is full, clocks that are stepped, records that are torn; runs
that flood, forge and talk nonsense; users who cancel, pause and delete. A seed decides what happens when. After the
storm everything has time to end, and each run is judged by what it said itself.

    python -m benchmarks.storm [--json] [--quick] [--minutes N] [--seed S] [--report FILE] [--replay FILE [--minimise]]

A report says what happened and what was wrong. --replay lets the same happen again; with --minimise it leaves out acts
as long as something is still wrong, and writes the shortest list that it finds into the report.

Where this machine cannot fill a disk (root can) or step a clock (gcc is needed), it says so.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException

from benchmarks._claims import at_most, command_line, report
from benchmarks._host.former import FORMER, former_version
from benchmarks._host.served import served
from benchmarks.storm.judge import Verdict, judge
from benchmarks.storm.weather import KINDS, Act, as_json, forecast, happen
from benchmarks.storm.world import DEVICES, Submitted, World
from prefect_gpu.lab.sandbox import Sandbox

POOL = "storm"
Play = Callable[[list[Act], float, int], dict[str, Any]]
_WAITING = 6  # runs that are not over, at any time
_EVERY_S = 12.0  # from one act to the next, on average; they overlap
_CALM_S = 420.0  # for everything to end
_ALL_S = 60.0  # for the run that needs all devices
_LOOK_S = 2.0
_TOLD = 20  # sentences about what was wrong, in the result; a report has them all


async def storm(sandbox: Sandbox, folder: Path, acts: list[Act], seconds: float, seed: int) -> tuple[World, Verdict]:
    """Let all acts happen, wait, and judge."""
    async with get_client() as client:
        world = World(sandbox, client, POOL, folder, former_version(FORMER, folder / "former"), random.Random(seed))
        async with world:
            world.start_worker()
            world.start_worker()
            submitting = asyncio.create_task(_keep_submitting(world))
            await asyncio.sleep(8.0)  # the first ones begin
            begun = time.monotonic()
            happening = [asyncio.create_task(_later(world, act, begun)) for act in acts]
            await asyncio.sleep(seconds)
            submitting.cancel()
            await asyncio.gather(*happening, submitting, return_exceptions=True)
            for task in happening:
                if not task.cancelled() and (error := task.exception()):
                    raise error
            await world.proxy.heal()
            world.set_clock(0.0)
            leaked = await _calm(world)
            verdict = await judge(world)
            verdict.leaked += leaked
            return world, verdict


async def _later(world: World, act: Act, begun: float) -> None:
    await asyncio.sleep(begun + act.at_s - time.monotonic())
    print(f"{act.at_s:7.1f} s  {act.kind}", file=sys.stderr, flush=True)
    await happen(world, act)


async def _keep_submitting(world: World) -> None:
    while True:
        try:
            for _ in range(_WAITING - len(await world.open())):
                await world.submit()
        except (PrefectException, httpx.HTTPError):
            pass  # the server is down, as it may be
        await asyncio.sleep(_LOOK_S)


async def _calm(world: World) -> list[str]:
    """Wait until all are over; then a run gets all devices. Says what is wrong with them."""
    await _served_until(world, _CALM_S, None)
    parameters = {"folder": str(world.folder), "steps": 1, "step_s": 0.0}
    run = await world.client.create_flow_run_from_deployment(
        world.deployment, parameters=parameters, job_variables={"gpus": DEVICES, "exclusive": True}
    )
    world.runs[run.id] = Submitted(run.id, 1)
    if await _served_until(world, _ALL_S, run.id):
        return []
    state = (await world.client.read_flow_run(run.id)).state
    return [f"a run that needs all devices is {state.name if state else None}: {state.message if state else None}"]


async def _served_until(world: World, patience_s: float, run: UUID | None) -> bool:
    """Whether a run is over in time; all runs if none is named.

    Prefect's command ends if it is told at its start that there is no such pool. A worker that began in the storm may
    still be about to do so; as with a supervisor, another one is started then.
    """
    for _ in range(int(patience_s / _LOOK_S)):
        left = await world.open()
        if not left or (run is not None and run not in left):
            return True
        if not world.living():
            world.start_worker()
        await asyncio.sleep(_LOOK_S)
    return False


def play(acts: list[Act], seconds: float, seed: int) -> dict[str, Any]:
    """One storm, and its report."""
    with tempfile.TemporaryDirectory(prefix="prefect-gpu-storm-") as name, served({POOL: "gpu"}) as sandbox:
        world, verdict = asyncio.run(storm(sandbox, Path(name), acts, seconds, seed))
        wrong = {kind: getattr(verdict, kind) for kind in ("lost", "twice", "leaked", "checkpoints", "foreign")}
        if any(wrong.values()):
            keep = Path(tempfile.mkdtemp(prefix="prefect-gpu-storm-logs-"))
            for log in (*sandbox.folder.glob("*.log"), world.folder / "diary"):
                if log.exists():
                    (keep / log.name).write_bytes(log.read_bytes())
            print(f"The logs of this storm are in {keep}", file=sys.stderr)
    return {
        "seed": seed,
        "seconds": seconds,
        "acts": as_json(acts),
        "wrong": wrong,
        "courses": verdict.courses,
        "standstill_s": verdict.standstill_s,
        "standstills": verdict.standstills[:10],
        "runs": len(world.runs),
        "left out": world.limits,
    }


def is_wrong(told: dict[str, Any]) -> bool:
    """Whether a storm did harm."""
    return any(told["wrong"].values())


def minimised(told: dict[str, Any], play: Play) -> dict[str, Any]:
    """The shortest list of acts that is found by leaving out ever smaller parts (Zeller's ddmin) and is still wrong."""
    acts, parts = [Act(**act) for act in told["acts"]], 2
    while len(acts) > 1:
        size = -(-len(acts) // parts)
        for start in range(0, len(acts), size):
            fewer = acts[:start] + acts[start + size :]
            again = play(fewer, min(told["seconds"], fewer[-1].at_s + 60.0), told["seed"])
            if is_wrong(again):
                told, acts, parts = again, fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(acts))
    return told


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="twenty seconds with four acts")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long the storm is (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when (default: 1)")
    parser.add_argument("--report", type=Path, help="where to write what happened")
    parser.add_argument("--replay", type=Path, help="a report whose acts happen again")
    parser.add_argument("--minimise", action="store_true", help="with --replay: leave out what does not matter")
    options = parser.parse_args()
    if options.replay:
        told = json.loads(options.replay.read_text())
        if options.minimise:
            told = minimised(told, play)
        else:
            told = play([Act(**act) for act in told["acts"]], told["seconds"], told["seed"])
    elif options.quick:
        kinds = ("the server answers 404", "a worker is killed", "runs are cancelled", "a run talks nonsense")
        told = play([Act(3.0 * at, kind, at) for at, kind in enumerate(kinds, 1)], 20.0, options.seed)
    else:
        acts = forecast(options.seed, options.minutes, _EVERY_S)
        told = play(acts, 60.0 * options.minutes, options.seed)
    if options.report:
        options.report.write_text(json.dumps(told, indent=1))
    wrong = told["wrong"]
    claims = [
        at_most("runs that were lost", len(wrong["lost"]), 0),
        at_most("runs that ran twice", len(wrong["twice"]), 0),
        at_most("devices that were leaked, or held by two", len(wrong["leaked"]), 0),
        at_most("checkpoints that were lost", len(wrong["checkpoints"]), 0),
        at_most("files and processes of others that were touched", len(wrong["foreign"]), 0),
        at_most("longest standstill of a worker's event loop, seconds", told["standstill_s"], 1.0),
    ]
    happened = Counter(act["kind"] for act in told["acts"])
    details = {
        "wrong": [sentence for sentences in wrong.values() for sentence in sentences][:_TOLD],
        "runs": told["runs"],
        "happened": {kind: happened[kind] for kind in KINDS if happened[kind]},
        "standstills": told["standstills"],
        "left out": told["left out"],
    }
    return report("storm", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
