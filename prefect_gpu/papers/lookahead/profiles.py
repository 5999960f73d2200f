"""Ours, for gangs on networks: Liquid's placement, and plans for who waits for a nearer place."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.papers.liquid.sharing import EstimatedUse
from prefect_gpu.papers.lookahead.allocation import Lookahead
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.profiles.profile import Profile

PATIENCE_S = 3600.0
"""Gangs train for hours, and a plan that makes one wait for less than its own length can be worth it."""


def _ahead() -> Profile:
    # Nobody is prepared behind another: the next run would have to start where that one is, near or not.
    return Profile(
        "ahead", sharing=EstimatedUse(), allocation=(Lookahead(), Batch(32), Backfill()), patience_s=PATIENCE_S
    )


PROFILES: dict[str, Callable[[], Profile]] = {"ahead": _ahead}
