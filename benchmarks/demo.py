"""How soon does the demo train, and how long does it take?

A bare Prefect server on a migrated database, with nothing beside it, until it answers; then the demo, from the
start of its command until its first training begins, and until it has ended. Several such pairs. The very first server
is not measured: its database may have to be migrated. Neither is the installation of the environment.

    python -m benchmarks.demo [--json] [--quick] [--rounds N]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._claims import Claim, at_most, command_line, report
from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.reporting.spans import phase_spans
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow

ROOT = Path(__file__).parents[1]
TRIALS, QUICK_TRIALS = 12, 4
FIRST_TRAINING_S, WHOLE_S = 12.0, 75.0


@dataclass(frozen=True)
class Pair:
    """One bare server and one demo; seconds.

    Attributes:
        server_s: Until the bare server answered.
        first_training_s: From the start of the demo's command until the first training began, prepared.
        whole_s: From the start of the demo's command to its end.
        server_cpu_s, demo_cpu_s: Processor time of each, with all that it started.
    """

    server_s: float
    server_cpu_s: float
    first_training_s: float
    whole_s: float
    demo_cpu_s: float


def bare_server(sandbox: Sandbox) -> tuple[float, float]:
    """Start a server on a database that it has had before, and stop it. Seconds until it answered, and of processor."""
    before, began = _children_cpu_s(), time.monotonic()
    sandbox.start_server()
    took = time.monotonic() - began
    sandbox.stop_server()
    return took, _children_cpu_s() - before


def demo(trials: int, output: Path) -> tuple[float, float, float]:
    """Run the demo. Seconds until its first training began, until its end, and of processor.

    Raises:
        RuntimeError: It failed.
    """
    before, began_at, began = _children_cpu_s(), time.time(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "prefect_gpu.demo", "--trials", str(trials), "--output", str(output)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    whole = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"The demo failed:\n{done.stdout}{done.stderr}")
    with History(f"sqlite:///{output / 'history.db'}") as history:
        first = first_training_at(history.rows()) - began_at
    return first, whole, _children_cpu_s() - before


def first_training_at(rows: Sequence[HistoryRow]) -> float:
    """When the first of these runs began to train, in Unix seconds."""
    return min(span.start for row in rows for span in phase_spans(row) if span.phase == "training")


def claims_of(pairs: Sequence[Pair], trials: int) -> list[Claim]:
    """What is claimed of these pairs."""
    later = statistics.median(pair.first_training_s - pair.server_s for pair in pairs)
    whole = statistics.median(pair.whole_s for pair in pairs)
    return [
        at_most("first training begins after a bare server would have answered, s", later, FIRST_TRAINING_S),
        at_most(f"the demo's own work with {trials} trials, from its command to its end, s", whole, WHOLE_S),
    ]


def _children_cpu_s() -> float:
    """Of all processes that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick=f"about a minute: one pair, with {QUICK_TRIALS} trials")
    parser.add_argument("--rounds", type=int, default=3, help="pairs (default: 3)")
    options = parser.parse_args()
    rounds, trials = (1, QUICK_TRIALS) if options.quick else (options.rounds, TRIALS)
    pairs = []
    with Sandbox() as sandbox, tempfile.TemporaryDirectory() as folder:
        sandbox.stop_server()
        for number in range(rounds):
            server_s, server_cpu_s = bare_server(sandbox)
            first_s, whole_s, demo_cpu_s = demo(trials, Path(folder) / str(number))
            pairs.append(Pair(server_s, server_cpu_s, first_s, whole_s, demo_cpu_s))
            print(
                f"bare server {server_s:.1f} s, first training {first_s:.1f} s, demo {whole_s:.1f} s "
                f"({demo_cpu_s:.0f} s of processor)",
                file=sys.stderr,
            )
    details = {
        "trials": trials,
        "cores": len(os.sched_getaffinity(0)),
        "load_at_end": round(os.getloadavg()[0], 1),
        "pairs": [{name: round(value, 2) for name, value in asdict(pair).items()} for pair in pairs],
    }
    return report("demo", claims_of(pairs, trials), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
