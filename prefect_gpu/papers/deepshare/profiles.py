"""DeepShare (Ryu & Eo, 2023): placement by contention sensitivity.

``deepshare`` is the paper's RL-Hybrid (§IV) without the RL: the greedy rule decides everything. ``deepshare-base`` is
its RL-base, a trained network alone; ``deepshare-hybrid`` is the network, guarded by the rule. Both are there for each
branch of the reward (``deepshare-base-a`` and so on).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from prefect_gpu.papers.baselines.strict import Strict
from prefect_gpu.papers.deepshare.composed import Composed
from prefect_gpu.papers.deepshare.even_spread import EvenSpread
from prefect_gpu.papers.deepshare.greedy import ContentionAware, Rule
from prefect_gpu.papers.deepshare.peer_orders import LeastComplete, MostServed
from prefect_gpu.papers.deepshare.rounds import Rounds, StopAll
from prefect_gpu.papers.deepshare.shipped import available, shipped
from prefect_gpu.papers.deepshare.slowdowns import UnnamedSlowdowns
from prefect_gpu.papers.deepshare.traffic import TRAFFIC, SupposedTraffic
from prefect_gpu.papers.deepshare.trained_policy import TrainedPolicy
from prefect_gpu.papers.deepshare.view import Policy
from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.order.orders import LeastService, Order
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.sharing.rules import NoSharing
from prefect_gpu.scheduling.state.learned import Learned

GREEDY = Rule(gpus_power=1.5)
CALM = Rule(least_used=0.75, gpus_power=1.5)
BUSY = Rule(least_used=1.0, least_gain=0.0, worth_power=3.0, priced=True)
"""The rule behind a policy: it gets as much done at once as it can. Jobs are complete sooner, and run slower."""
LEAST_VALUE = 0.9
BASE_BRANCH, HYBRID_BRANCH = "B", "E"
"""Of the profiles without a letter. The hybrid's, LEAST_VALUE, and the powers in BUSY were chosen on sets 10 to 19."""


def _baseline(name: str, order: Order) -> Profile:
    allocation = (Rounds(), StopAll(), Strict())
    return Profile(name, order, EvenSpread(), NoSharing(), allocation, patience_s=math.inf)


def _profile(
    name: str, table: SensitivityTable | None, allocation: tuple[Action, ...], *reactions: Reaction
) -> Profile:
    return Profile(
        name,
        LeastService(),
        sharing=NoSharing(),
        allocation=allocation,
        reactions=reactions,
        patience_s=math.inf,
        learned=Learned(SensitivityTable(traffic=TRAFFIC) if table is None else table),
    )


def greedy(
    table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None, rule: Rule = GREEDY
) -> Profile:
    """The greedy rule alone.

    Args:
        table: How much jobs slow each other down; None predicts it from the traffic of the paper's models (Table I).
        speeds: Speeds of jobs alone by how they are spread, if measured.
        rule: What it is after.
    """
    only_learns = PreemptOnSlowdown(math.inf)
    return _profile("deepshare-greedy", table, (ContentionAware(speeds, rule=rule),), SupposedTraffic(), only_learns)


def hybrid(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    policy: Policy | None = None,
    *,
    rule: Rule | None = None,
) -> Profile:
    """RL-Hybrid (§IV): a policy, the greedy rule where it starts nothing, and preemption of jobs that are slowed down.

    Without a policy the rule is all there is. Behind one it keeps the cluster busy, and guards the policy: of starts
    that it values nearly alike, the policy chooses. The policy is asked only about the jobs that come first: its reward
    has no word for completion, and it would rather begin with the largest.

    Args:
        table: As for :func:`greedy`; it learns from measured slowdowns.
        speeds: As for :func:`greedy`.
        policy: What decides first, such as :func:`~prefect_gpu.papers.deepshare.shipped.shipped`; None: the greedy
            rule decides alone.
        rule: What the rule is after; None: running times where it decides alone, and a busy cluster behind a policy.
    """
    allocation = ContentionAware(
        speeds,
        policy,
        rule=rule or (CALM if policy is None else BUSY),
        least_value=LEAST_VALUE,
        head=1.0,
        fewest=True,
        exchanges=policy is not None,
    )
    stops = UnnamedSlowdowns(PreemptOnSlowdown(foreseen=policy is not None))
    name = "deepshare" if policy is None else "deepshare-hybrid"
    return _profile(name, table, (allocation,), SupposedTraffic(), stops)


def base(table: SensitivityTable | None, speeds: Mapping[Key, float] | None, policy: TrainedPolicy) -> Profile:
    """RL-base (§IV): the network's action alone, and preemption of jobs that are slowed down.

    The greedy rule only starts jobs that the network has no action for, such as one of a single GPU.

    Args:
        table: As for :func:`hybrid`; the network does not see it.
        speeds: As for :func:`hybrid`.
        policy: The network.
    """
    allocation = ContentionAware(speeds, policy, rule_for=lambda way: not policy.knows(way))
    # Whoever was stopped may meet the same jobs again, as in the paper: the network decides, and it cannot know.
    stops = UnnamedSlowdowns(PreemptOnSlowdown(foreseen=True, parts=False))
    return _profile("deepshare-base", table, (allocation,), SupposedTraffic(), stops)


def search(table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None) -> Profile:
    """All compositions of jobs on each group of nodes are looked at; see :class:`.Composed`.

    Args:
        table: As for :func:`greedy`.
        speeds: As for :func:`greedy`.
    """
    return _profile("deepshare-search", table, (Composed(speeds), ContentionAware(speeds)))


AGENTS: dict[str, tuple[Callable[..., Profile], str]] = {
    f"deepshare-{kind}{suffix}": (maker, branch)
    for kind, maker, usual in (("base", base, BASE_BRANCH), ("hybrid", hybrid, HYBRID_BRANCH))
    for suffix, branch in (("", usual), *((f"-{one.lower()}", one) for one in available()))
}
"""The profiles with a trained network: what makes them, and the branch of the network's reward."""
_RULES: dict[str, Callable[..., Profile]] = {
    "deepshare": hybrid,
    "deepshare-greedy": greedy,
    "deepshare-search": search,
}


def knowing(name: str, table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None) -> Profile:
    """The profile of this name, knowing a table.

    Args:
        name: One of :data:`PROFILES`, but not a baseline.
        table: As for :func:`greedy`.
        speeds: As for :func:`greedy`.
    """
    if name in _RULES:
        return _RULES[name](table, speeds)
    maker, branch = AGENTS[name]
    return replace(maker(table, speeds, shipped(branch)), name=name)


PROFILES: dict[str, Callable[[], Profile]] = {
    "deepshare-las": lambda: _baseline("deepshare-las", MostServed()),
    "deepshare-srtf": lambda: _baseline("deepshare-srtf", LeastComplete()),
    **{name: partial(knowing, name) for name in (*_RULES, *AGENTS)},
}
