"""SpeCon (Mao et al.): converged runs give way."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.papers.specon.rebalance import rebalance
from prefect_gpu.papers.specon.round_robin import RoundRobin
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.speculation import Speculation

PROFILES: dict[str, Callable[[], Profile]] = {
    "round-robin": lambda: Profile("round-robin", placement=RoundRobin()),
    "specon-printed": lambda: Profile(
        "specon-printed", placement=RoundRobin(), reactions=(Speculation(learners=2, evens_out=rebalance, favour=1.0),)
    ),
    "specon": lambda: Profile("specon", placement=Spread(), reactions=(Speculation(),)),
}
