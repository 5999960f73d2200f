"""A run that is to carry on later, if at all: it ends as Suspended in Prefect, and its checkpoint stays.

Prefect's own ``suspend_flow_run`` needs a deployment, as its rules want to find the flow again. A run of a pool has its
bundle, so those rules do not hold for it: its state is set by force.
"""

from __future__ import annotations

import logging
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.states import Suspended

logger = logging.getLogger("prefect_gpu.training")


def suspend(run_id: str, message: str) -> None:
    """End this process's flow run as Suspended. Returns only if it cannot be: then the flow goes on after its loop.

    Raises:
        Pause: The run is suspended. Prefect's engine ends the process.
    """
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run_id)).state
        if state is None or not state.is_running():  # it is being cancelled, say
            return
        suspended: State = Suspended(message=message)
        client.set_flow_run_state(UUID(run_id), suspended, force=True)
    logger.info("The run is suspended: %s", message)
    raise Pause(state=suspended)
