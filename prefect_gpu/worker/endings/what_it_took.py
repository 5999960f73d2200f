"""How long a run has held its devices, what it took of them and what it had saved, kept in Prefect while it has none.

A run that was stopped or suspended leaves nothing on the worker's machine. Another worker may start it again, or the
same one after a restart: its time limit counts on, and so does what it costs. If its checkpoint is not found where it
carries on, it says so.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.launch.launch import CONSUMED, SAVED_BEFORE, Launch
from prefect_gpu.runtime.metering.consumption import SOURCES
from prefect_gpu.worker.server.asking import Asking

HELD_S = "prefect-gpu.held-s"
"""The label of a flow run with a time limit: the seconds for which it had held its devices when it last lost them."""

TOOK = "prefect-gpu.took"
"""The label of a flow run that was stopped or suspended: what it had taken then, as JSON; empty once it is over."""

_SAVED = "saved_step"  # in that label
_KEPT = "took_before"  # in what a record knows: whether the run has that label, and something in it
_SUMS = ("device_s", "energy_j", "cost")
_FLAGS = ("unpriced", "unmetered")
_MOST = 1e15  # no run takes so much of anything


def held_before(flow_run: FlowRun) -> float:
    """Seconds for which a run has held its devices in earlier launches, whichever worker they were of."""
    found = (flow_run.labels or {}).get(HELD_S)
    return float(found) if _is_amount(found) else 0.0  # type: ignore[arg-type]


def taken_before(flow_run: FlowRun) -> dict[str, Any]:
    """What a record knows of what earlier launches of a run took and saved; empty if Prefect has nothing of it.

    A label that somebody else has written counts for nothing, and so does every part of it that makes no sense.
    """
    told = (flow_run.labels or {}).get(TOOK)
    if not isinstance(told, str):
        return {}
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(told)
    if not isinstance(found, dict):
        return {CONSUMED: {}}
    taken = {name: float(found[name]) for name in _SUMS if _is_amount(found.get(name))}
    flags = {name: True for name in _FLAGS if found.get(name) is True}
    source = found.get("energy_from")
    counted = {"energy_from": source} if source in SOURCES else {}
    saved = {SAVED_BEFORE: int(found[_SAVED])} if _is_amount(found.get(_SAVED)) else {}
    return {CONSUMED: {**taken, **flags, **counted}, _KEPT: True, **saved}


async def keep_what_it_took(asking: Asking, run: Launch, *, ends: bool = False) -> None:
    """Write into Prefect for how long a run has held its devices and what it took, before it waits again.

    Args:
        ends: It is over. Should it be tried again, its time and its costs begin anew.
    """
    known, labels = run.record.known, dict[str, Any]()
    if run.record.request.time_limit_s is not None and (known.get("held_s") or not ends):
        labels[HELD_S] = 0.0 if ends else round(run.held_s(CLOCK()), 3)
    if ends and known.get(_KEPT):
        labels[TOOK] = ""
    elif not ends and known.get(CONSUMED):
        saved = {_SAVED: run.saved_step} if run.saved_step and run.record.request.preemptible else {}
        labels[TOOK] = json.dumps({**known[CONSUMED], **saved}, sort_keys=True)
    if labels:
        with suppress(ObjectNotFound):
            await asking.persist_of(run, lambda: asking.label(run.run_id, labels))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST  # NaN is not
