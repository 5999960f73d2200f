"""``prefect worker start`` with nodes that workers of several machines serve, as they serve a Swarm.

The nodes are this machine, whose runs any such worker can find and remove, whatever its state folder. A lease lasts a
few seconds here. To be started as ``python -m tests.live.leased_worker worker start ...``.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.training.protocol import ENV_RUN_ID
from tests.forge import shorten_lease, show_at_once

TERRITORY = "engine-everywhere"


async def scope(driver: ProcessDriver) -> str:
    """See :meth:`Driver.scope`."""
    return TERRITORY


async def sweep(driver: ProcessDriver) -> None:
    """See :meth:`Driver.sweep`."""
    ours = {handle.run_id for handle in driver._handles}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environ = process.environ()
            run = environ.get(ENV_RUN_ID)
            if environ.get("PREFECT_HOME") == os.environ["PREFECT_HOME"] and run is not None and run not in ours:
                process.kill()


def main() -> None:
    """The command."""
    from prefect.cli import app

    setattr(ProcessDriver, "scope", scope)  # noqa: B010  # mypy knows that a method is no variable
    setattr(ProcessDriver, "sweep", sweep)  # noqa: B010
    shorten_lease()
    show_at_once(os.environ)
    app()


if __name__ == "__main__":
    main()
