"""Whether a deadline could be promised to a run that nobody has submitted: asked beforehand, and nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prefect_gpu.estimation.submission import known_of
from prefect_gpu.request import check_request
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.sharing.rules import decided
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.configuration import check_bounds, scheduler_request

_NOBODY = "nobody"  # the id of a run that there is not


def could_be_promised(controller: Controller, asked: Mapping[str, Any], settings: GpuSettings) -> dict[str, Any]:
    """What a run would be answered if it were submitted now.

    Args:
        asked: ``flow`` (its name), ``parameters``, and ``job_variables``, with ``deadline`` among them. Job variables
            that are not ours are left out of account.

    Returns:
        ``probability`` with which the deadline is promised (None: it is refused), ``deadline`` and ``earliest`` (the
        earliest date that could be promised instead, None if there is none) in Unix seconds, ``starts_by`` (when its
        devices are planned to be its own at the latest) and ``reason``.

    Raises:
        ValueError: A value is not allowed. The message names the field, the value and the remedy.
    """
    flow, parameters, variables = asked.get("flow"), asked.get("parameters") or {}, asked.get("job_variables")
    if not isinstance(flow, str) or not isinstance(parameters, dict) or not isinstance(variables, dict):
        raise ValueError("asked must have the flow's name, parameters, and job_variables as JSON objects.")
    wanted = check_request(**variables)
    check_bounds(wanted, settings)
    if wanted.deadline is None:
        raise ValueError("deadline is missing: give a length of time such as 6h, or a date with its time zone.")
    now, state = CLOCK(), controller.scheduler.state
    request = replace(scheduler_request(wanted, CLOCK.unix(now)), promise=True)
    assert request.deadline_at is not None
    request = replace(request, deadline_at=CLOCK.of(request.deadline_at))
    kind = controller.fleet.kind if request.gpus else None
    known = known_of(flow, parameters, request, {}, kind)
    try:
        estimate = controller.estimates.submitted(
            _NOBODY, known, request.most_if_elastic, wide=request.grows, batch_sizes=request.batch_sizes
        )
    finally:
        controller.estimates.forget(_NOBODY)
    request = replace(decided(request, estimate, state.capability.may_hold), kind=known.program)
    job = Job(_NOBODY, request, "", now, now, estimate=estimate)
    job.room_bytes = state.capability.room_for(job)
    answer, by = controller.scheduler.could_promise(job, now), request.deadline_at
    assert by is not None
    return {
        "probability": None if answer.planned is None else state.learned.reach.probability,
        "deadline": CLOCK.unix(by),
        "earliest": None if answer.earliest is None else CLOCK.unix(answer.earliest),
        "starts_by": None if answer.planned is None else CLOCK.unix(answer.planned.start),
        "reason": answer.reason,
    }
