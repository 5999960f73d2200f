"""Do runs end sooner where the pool knows how fast each program is on each kind of device?

*Live*: four virtual devices of one node, one of the kind "fast" and three of the kind "slow", and trainings of two
programs. What a kind is: a part of a core, 8 % or 2 %, which each training keeps to by its own CPU clock, as a quota
of the kernel's would make it (``benchmarks/kinds/training.py``). "compute" takes four times as long on a slow device;
"reader" mostly waits for its data, and hardly gains from a fast one. First a few runs of each on each kind are learned
from, by the pool's own estimator, which is to find how many times as long each takes. Then the same workload runs in
turns with what was learned of kinds, and without: the scheduler is then told the same seconds for all devices. The
controller, the processes and the channel are real, and so is every step; Prefect takes no part, and the devices are no
GPUs.

*Simulated*: 32 devices of three kinds on eight nodes, 300 jobs of three programs whose seconds are known exactly, and
five workloads; with jobs that may be stopped, and with jobs that may not. The speeds are assumed.

    python -m benchmarks.kinds [--json] [--quick] [--repeats N]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from benchmarks._claims import at_least, at_most, command_line, report
from benchmarks.kinds import live, simulated
from prefect_gpu.estimation.estimator import Estimator

ASKED = 0.2
OFF = 1.25


async def measure(
    folder: Path, repeats: int, count: int, scale: float
) -> tuple[dict[bool, list[live.Passed]], Estimator]:
    """All passes, with what is known of kinds and without, in turns; and what was learned."""
    estimator = Estimator(await live.learn(folder / "learn", scale))
    passes: dict[bool, list[live.Passed]] = {False: [], True: []}
    for repeat in range(repeats):
        for kinds in (False, True) if repeat % 2 == 0 else (True, False):
            done = await live.once(folder / f"{repeat}-{kinds}", estimator, scale, repeat, kinds=kinds, count=count)
            passes[kinds].append(done)
            print(f"kinds {'known' if kinds else 'ignored'}: {live.mean_of([done]):.1f} s", file=sys.stderr)
    return passes, estimator


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: one short pass of each, two simulated workloads")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="the number of steps is multiplied by it")
    options = parser.parse_args()
    repeats, count, scale, workloads = (1, 6, 0.2, 2) if options.quick else (options.repeats, 12, options.scale, 5)
    with tempfile.TemporaryDirectory(prefix="prefect-gpu-kinds-") as folder:
        passes, estimator = asyncio.run(measure(Path(folder), repeats, count, scale))
    shorter = 1.0 - live.mean_of(passes[True]) / live.mean_of(passes[False])
    played = {
        "jobs that may be stopped": simulated.shorter(300, lambda: range(workloads), preemptible=True),
        "jobs that may not": simulated.shorter(300, lambda: range(workloads), preemptible=False),
    }
    learned = live.speeds(estimator)
    off = max(max(learned[name] / true, true / learned[name]) for name, true in live.SLOWER.items())
    claims = [
        at_most("live: learned speeds on the kinds, off by a factor of at most", round(off, 3), OFF),
        at_least("live: mean completion time shorter by", round(shorter, 3), ASKED),
        *(at_least(f"simulated, {name}: shorter by", round(one["shorter"], 3), ASKED) for name, one in played.items()),
    ]
    details = {
        "live_s": {"kinds ignored": live.mean_of(passes[False]), "kinds known": live.mean_of(passes[True])},
        "learned: slow over fast": learned,
        "on which kinds": {
            "kinds known" if known else "kinds ignored": {
                program: {kind: sum(one.kinds[program].count(kind) for one in some) for kind in ("fast", "slow")}
                for program in live.STEPS
            }
            for known, some in passes.items()
        },
        "simulated": played,
        "load_of_the_machine": os.getloadavg()[0],
    }
    return report("kinds", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
