"""A flow that its user has suspended, and that goes on all the same, as the pool could not let it stop."""

from __future__ import annotations

import sys
from collections.abc import Callable


def forgetting() -> Callable[[], None]:
    """What makes Prefect's engine forget that the flow was suspended whose thread this is.

    The engine notes a suspension as soon as it hears of it, and ends the flow at the next task or at its end, without
    its result. Prefect has no word for taking that back. Without Prefect, or in a version that notes nothing, nothing
    is to be done.
    """
    context = sys.modules.get("prefect.context")
    flow = None if context is None else context.FlowRunContext.get()
    request = getattr(flow, "flow_run_suspension_request", None)

    def forget() -> None:
        if request is not None:
            request.mark_requested(None)

    return forget
