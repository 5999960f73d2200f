"""An instance of a gang: Prefect's engine runs in the first one, and in the others the flow's function alone.

``python -m prefect_gpu.instance`` takes the flow run and its parameters from Prefect, as the engine does.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import runpy
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun


def is_further_instance() -> bool:
    """Whether this process is an instance of a gang, and not the first."""
    from prefect_gpu.training.protocol import ENV_ROLE

    return ENV_ROLE in os.environ and os.environ.get("RANK", "0") != "0"


def is_first_instance() -> bool:
    """Whether this process is the first instance of a gang, which speaks for it."""
    from prefect_gpu.training.protocol import ENV_ROLE

    return ENV_ROLE in os.environ and os.environ.get("RANK") == "0"


def not_tried_here(flow: Flow[..., Any]) -> Flow[..., Any]:
    """A gang's flow, whose first instance ends with its process where it fails and has a retry left.

    Prefect would try it again at once, in its process. The others are not there to be met: they still wait for the
    failed try, or have ended because of it. An instance that ends has the pool start all of them anew.
    """
    function = flow.fn

    @contextmanager
    def ending() -> Iterator[None]:
        try:
            yield
        except Exception:
            if _is_tried_again():
                _end()
            raise

    # One for each kind of function: Prefect looks at what it has to do with it.
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def ends(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with ending():
                async for value in function(*args, **kwargs):
                    yield value
    elif inspect.iscoroutinefunction(function):

        @wraps(function)
        async def ends(*args: Any, **kwargs: Any) -> Any:
            with ending():
                return await function(*args, **kwargs)
    elif inspect.isgeneratorfunction(function):

        @wraps(function)
        def ends(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with ending():
                yield from function(*args, **kwargs)
    else:

        @wraps(function)
        def ends(*args: Any, **kwargs: Any) -> Any:
            with ending():
                return function(*args, **kwargs)

    ending_flow = copy(flow)
    ending_flow.fn = ends
    return ending_flow


def _is_tried_again() -> bool:
    """Whether Prefect has a retry left for the run. If it does not answer, it is left to the engine to ask it."""
    from prefect.flow_engine import load_flow_run

    try:
        flow_run = load_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
    except Exception:
        return False
    return 0 < flow_run.run_count <= (flow_run.empirical_policy.retries or 0)


def _end() -> NoReturn:
    """End this process, without a word of its engine's to Prefect: the worker says what becomes of the run."""
    from prefect.logging import get_run_logger

    get_run_logger().error("The first instance of the gang has failed: all are started anew.", exc_info=True)
    with suppress(Exception):
        logging.shutdown()  # what was logged is sent
    os._exit(1)


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
    from prefect import flow_engine

    if not is_further_instance():
        load_flow = flow_engine.load_flow
        flow_engine.load_flow = lambda flow_run: not_tried_here(load_flow(flow_run))
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
        return
    flow_run, flow = flow_engine.load_flow_and_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
    run_function(flow, flow_run)


if __name__ == "__main__":
    main()
