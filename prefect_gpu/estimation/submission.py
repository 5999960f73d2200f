"""What is known of a run that was submitted, from its flow, its request and what it declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_gpu.estimation.runs import Known
from prefect_gpu.scheduling.model.jobs import Request

RESUMED_AT = "resumed_at"  # in a row's features: the steps that a run had done when it was restored
SPEEDS = "speeds"  # likewise: of an elastic run, by number of devices, the steps that it did on them and the seconds
MAX_GPUS = "max_gpus"  # likewise: the most devices that it could have used
SHARES = "shares"  # likewise: whether it was placed as one that may share its devices
# In a row's features, beside what the run declared.
_NOTED_BY_THE_POOL = ("gpus", "tags", "named", RESUMED_AT, SPEEDS, MAX_GPUS, SHARES)


def known_of(
    flow_name: str,
    parameters: Mapping[str, Any],
    request: Request,
    features: Mapping[str, Any],
    device_kind: str | None,
) -> Known:
    """What is known of a run that was submitted.

    Args:
        features: What it declared of itself, once it has begun; empty before.
        device_kind: Of the devices that it would run on; None: unknown.
    """
    return Known(
        flow_name,
        parameters,
        declared_of(features),
        gpus=request.total_gpus if request.grows else request.gpus,
        workers=request.workers,
        servers=request.servers,
        cpus=request.cpus,
        category=request.category,
        device_kind=device_kind,
        named=request.features,
    )


def declared_of(features: Mapping[str, Any]) -> dict[str, Any]:
    """What a run said of itself: steps, batch size, features; without what the pool notes beside it."""
    return {name: value for name, value in features.items() if name not in _NOTED_BY_THE_POOL}
