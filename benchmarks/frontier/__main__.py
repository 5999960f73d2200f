"""How good is ``adaptive`` in the worlds that others published?

    python -m benchmarks.frontier --traces DIR [--only NAME ...] [--quick] [--json]

DIR holds the published traces, at any depth; each world's module says which, and where they are public.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks._claims import command_line, report

WORLDS = {name: f"benchmarks.frontier.{name}" for name in ("cluster", "pollux", "shockwave", "elasticflow", "fgd")}
"""By name, the module whose ``measure(traces, quick)`` gives the world's claims."""


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="a part of each world")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    parser.add_argument("--only", nargs="+", choices=sorted(WORLDS), default=sorted(WORLDS), metavar="NAME")
    options = parser.parse_args()
    if options.traces is None or not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    claims = []
    for name in options.only:
        try:
            claims += import_module(WORLDS[name]).measure(options.traces, options.quick)
        except (FileNotFoundError, ValueError) as error:
            parser.error(str(error))
    return report("frontier", claims, {}, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
