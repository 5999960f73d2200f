"""Liquid (Gu et al., TPDS 2022): network-aware placement, sharing and pre-scheduling."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.papers.liquid.sharing import EstimatedUse
from prefect_gpu.papers.liquid.window import Window
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.prescheduling.successor import Prescheduling
from prefect_gpu.scheduling.profiles.profile import Profile


def _immediate() -> Profile:
    return Profile("liquid-immediate", sharing=EstimatedUse(), reactions=(Prescheduling(),))


def _batch() -> Profile:
    allocation = (Window(), Batch(), Backfill())
    return Profile("liquid-batch", sharing=EstimatedUse(), allocation=allocation, reactions=(Prescheduling(),))


PROFILES: dict[str, Callable[[], Profile]] = {
    "liquid-immediate": _immediate,
    "liquid-batch": _batch,
}
