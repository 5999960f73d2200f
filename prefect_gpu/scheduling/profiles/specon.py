"""SpeCon (Mao et al.): converged runs give way."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.policies.rotation import RoundRobin, Spread
from prefect_gpu.scheduling.policies.speculation import Speculation
from prefect_gpu.scheduling.profiles.profile import Profile

PROFILES: dict[str, Callable[[], Profile]] = {
    "round-robin": lambda: Profile("round-robin", placement=RoundRobin()),
    "specon-printed": lambda: Profile(
        "specon-printed", placement=RoundRobin(), reactions=(Speculation(learners=2, eager=False, favour=1.0),)
    ),
    "specon": lambda: Profile("specon", placement=Spread(), reactions=(Speculation(),)),
}
