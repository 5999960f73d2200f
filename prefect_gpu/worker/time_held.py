"""How long a run with a time limit has held its devices, kept in Prefect while it has none.

A run that was stopped or suspended leaves nothing on the worker's machine. Another worker may start it again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.launch import Launch
from prefect_gpu.worker.asking import Asking

HELD_S = "prefect-gpu.held-s"
"""The label of a flow run with a time limit: the seconds for which it had held its devices when it last lost them."""


def held_before(flow_run: FlowRun) -> float:
    """Seconds for which a run has held its devices in earlier launches, whichever worker they were of."""
    found = (flow_run.labels or {}).get(HELD_S)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return max(0.0, float(found)) if is_number else 0.0  # type: ignore[arg-type]


async def keep_time_held(asking: Asking, run: Launch, *, ends: bool = False) -> None:
    """Write into Prefect for how long a run with a time limit has held its devices, before it waits again.

    Args:
        ends: It is over. Should it be tried again, its time begins anew.
    """
    if run.record.request.time_limit_s is None or (ends and not run.record.known.get("held_s")):
        return
    label: Any = {HELD_S: 0.0 if ends else round(run.held_s(CLOCK()), 3)}
    with suppress(ObjectNotFound):
        await asking.persist(lambda: asking.client.update_flow_run_labels(UUID(run.run_id), label))
