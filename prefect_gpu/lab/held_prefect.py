"""``prefect``, with its imports done while it must still wait.

``python -m prefect_gpu.lab.held_prefect MODULE,... ARGUMENT...`` imports the modules, waits for a byte on its
standard input, and is then ``prefect ARGUMENT...``. If the input ends instead, its starter is gone, and it ends, too.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from importlib import import_module


def main() -> None:
    """Import, wait, and become Prefect's command."""
    for name in sys.argv[1].split(","):
        with contextlib.suppress(ImportError):  # who needs it will say so
            import_module(name)
    if not os.read(0, 1):
        sys.exit("The process that started this one has ended.")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
