"""F-scheduling (Seo, 2020): elastic runs by a throughput function."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.elastic.resize import Protection, Resize
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing

PROFILES: dict[str, Callable[[], Profile]] = {
    "f-scheduling": lambda: Profile(
        "f-scheduling", sharing=NoSharing(), allocation=(Resize(), Backfill()), reactions=(Protection(),)
    ),
}
