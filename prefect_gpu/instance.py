"""A further instance of a gang: the flow's function alone, since Prefect's engine runs in instance 0.

``python -m prefect_gpu.instance`` takes the flow run and its parameters from Prefect, as the engine does.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun


def is_further_instance() -> bool:
    """Whether this process is an instance of a gang, and not the first."""
    from prefect_gpu.training.protocol import ENV_ROLE

    return ENV_ROLE in os.environ and os.environ.get("RANK", "0") != "0"


def run_function(flow: Flow[..., Any], flow_run: FlowRun) -> None:
    """Call the flow's function with the run's parameters, outside of Prefect. What it returns is instance 0's to keep.

    ``get_run_logger()`` gives a logger that says nothing: one instance's log is enough.
    """
    from prefect.logging import disable_run_logger

    parameters = flow_run.parameters
    if flow.should_validate_parameters:
        parameters = flow.validate_parameters(parameters)
    with disable_run_logger():
        result = flow.fn(**parameters)
        if inspect.iscoroutine(result):
            asyncio.run(result)
        elif inspect.isgenerator(result):
            for _ in result:
                pass


def main() -> None:
    """The command."""
    from prefect.flow_engine import load_flow_and_flow_run

    flow_run, flow = load_flow_and_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
    run_function(flow, flow_run)


if __name__ == "__main__":
    main()
