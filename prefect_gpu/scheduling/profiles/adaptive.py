"""Ours: the best composition that we know, and the default."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.policies.allocation.adaptive import Adaptive
from prefect_gpu.scheduling.policies.order import LeastService
from prefect_gpu.scheduling.policies.sharing import DeclaredMemory
from prefect_gpu.scheduling.profiles.profile import Profile

PROFILES: dict[str, Callable[[], Profile]] = {
    "adaptive": lambda: Profile("adaptive", LeastService(), sharing=DeclaredMemory(), allocation=Adaptive()),
}
