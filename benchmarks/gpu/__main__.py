"""Measures the GPU of this machine, or, where there is none, goes through the same on a virtual device.

    python -m benchmarks.gpu [--json] [--quick | --rounds N] [--out FOLDER] [--part NAME ...] [--virtual]

Run it from the root of the source tree. It needs PyTorch and numpy; Prefect, and a network, it does not.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

# One thread each: what is measured is the device, and the libraries read this when they are loaded.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, the same training has other losses each time

from benchmarks.gpu.plain_channel import provide  # noqa: E402

_STANDS_IN = provide()

from benchmarks._claims import command_line, report  # noqa: E402
from benchmarks.gpu import caps, cores, idle, memory, sharing  # noqa: E402
from benchmarks.gpu.machine import Machine, this_machine  # noqa: E402
from benchmarks.gpu.pictures import draw  # noqa: E402
from benchmarks.gpu.pool import warm_driver  # noqa: E402
from benchmarks.gpu.scale import Part, Scale  # noqa: E402

PARTS = {"idle": idle, "sharing": sharing, "caps": caps, "memory": memory, "cores": cores}


async def _measure(
    machine: Machine, folder: Path, names: list[str], *, quick: bool, rounds: int
) -> dict[str, Part | str]:
    async with warm_driver() as driver:
        return await _each(Scale(machine, folder, driver, quick, rounds), names)


async def _each(scale: Scale, names: list[str]) -> dict[str, Part | str]:
    """Each part, or why it failed: the others are measured all the same."""
    found: dict[str, Part | str] = {}
    for name in names:
        began = time.monotonic()
        print(f"-- {name}: {(PARTS[name].__doc__ or '').splitlines()[0]}", file=sys.stderr)
        try:
            part = found[name] = await PARTS[name].measure(scale)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            print(f"   failed: {found[name]}", file=sys.stderr)
            continue
        for line in part.words:
            print(f"   {line}", file=sys.stderr)
        print(f"   ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    return found


def main() -> int:
    """Run the kit; the exit code is 1 when a claim does not hold or a part failed."""
    parser = command_line(__doc__, quick="about a minute: fewer, shorter trainings")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is compared: %(default)s times")
    parser.add_argument("--out", type=Path, help="folder for pictures (needs matplotlib)")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--virtual", action="store_true", help="use a virtual device even if there is a GPU")
    options = parser.parse_args()
    machine = this_machine(virtual=options.virtual)
    print(f"Measuring {machine.words}", file=sys.stderr)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-kit-", ignore_cleanup_errors=True) as folder:
        names = options.part or list(PARTS)
        rounds = 1 if options.quick else max(1, options.rounds)
        found = asyncio.run(_measure(machine, Path(folder), names, quick=options.quick, rounds=rounds))
    done = {name: part for name, part in found.items() if isinstance(part, Part)}
    failed = {name: why for name, why in found.items() if isinstance(why, str)}
    pictures = draw(done, options.out, machine) if options.out else "none asked for (--out FOLDER)"
    details = {
        "device": machine.words,
        "virtual": machine.virtual,
        "quick": options.quick,
        "channel": "a stand-in for websockets, which is not installed" if _STANDS_IN else "websockets",
        "parts": {name: part.figures for name, part in done.items()},
        "failed": failed,
        "pictures": pictures,
        "seconds": round(time.monotonic() - began, 1),
    }
    code = report("gpu", [claim for part in done.values() for claim in part.claims], details, as_json=options.json)
    return 1 if failed else code


if __name__ == "__main__":
    sys.exit(main())
