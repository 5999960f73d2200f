"""What a training says, such as that a checkpoint was damaged: in the log of its flow run, where Prefect shows it."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from prefect_gpu.training.forks import end_children_well
from prefect_gpu.training.protocol import ENV_RESTORES_ONLY, ENV_RUN_ID

_ENV_OF_PREFECT = "PREFECT__FLOW_RUN_ID"

logger = logging.getLogger("prefect_gpu.training")


def speak_in_the_run() -> None:
    """From now on, what this package says goes to the flow run's log, too. Again is nothing.

    Of a gang, the first instance's log is enough. Where Prefect is not, as with a command of the run's own, what is
    said is in the process's output only.
    """
    handlers, run_id = sys.modules.get("prefect.logging.handlers"), os.environ.get(ENV_RUN_ID)
    if handlers is None or not run_id or os.environ.get(_ENV_OF_PREFECT) != run_id:
        return
    if os.environ.get(ENV_RESTORES_ONLY) == "1" or _has(logger, handlers.APILogHandler):
        return

    def named(record: logging.LogRecord) -> bool:
        """Say whose it is: Prefect knows only in the flow's own thread."""
        context = sys.modules.get("prefect.context")
        if context is None or not (context.FlowRunContext.get() or context.TaskRunContext.get()):
            record.flow_run_id = run_id
        return True

    end_children_well()  # what sends is a thread of Prefect's, which a forked child would trip over at its end
    handler = handlers.APILogHandler()
    handler.addFilter(named)
    logger.addHandler(handler)


def _has(one: logging.Logger | None, kind: type[Any]) -> bool:
    """Whether it is sent already, as Prefect's setting of extra loggers may have it."""
    while one is not None:
        if any(isinstance(handler, kind) for handler in one.handlers):
            return True
        one = one.parent if one.propagate else None
    return False
