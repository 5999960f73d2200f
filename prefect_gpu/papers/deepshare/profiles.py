"""DeepShare (Ryu & Eo, 2023): placement by contention sensitivity.

``deepshare`` is the paper's RL-Hybrid without the RL: the greedy rule, a search of one step, decides everything, and
jobs that are slowed down too much are preempted. ``deepshare-base`` is the paper's RL-base, a trained network alone,
and ``deepshare-hybrid`` its RL-Hybrid: the network and the rule, which here guards it. Both are there for each branch
of the reward that was trained (``deepshare-base-a`` and so on); without a letter the base is branch B, and the hybrid
branch E.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from prefect_gpu.papers.deepshare.composed import Composed
from prefect_gpu.papers.deepshare.even_spread import EvenSpread
from prefect_gpu.papers.deepshare.greedy import ContentionAware, Rule
from prefect_gpu.papers.deepshare.peer_orders import LeastComplete, MostServed
from prefect_gpu.papers.deepshare.rounds import Rounds, StopAll
from prefect_gpu.papers.deepshare.shipped import available, shipped
from prefect_gpu.papers.deepshare.trained_policy import TrainedPolicy
from prefect_gpu.scheduling.allocation.backfill import Strict
from prefect_gpu.scheduling.interference.preempt_on_slowdown import MOST_STOPS, SLOWDOWN_LIMIT, PreemptOnSlowdown
from prefect_gpu.scheduling.interference.sensitivity import TRAFFIC, Key, SensitivityTable
from prefect_gpu.scheduling.interference.snapshot import Policy
from prefect_gpu.scheduling.order.orders import LeastService, Order
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing
from prefect_gpu.scheduling.state.learned import Learned

GREEDY = Rule(gpus_power=1.5)
CALM = Rule(least_used=0.75, gpus_power=1.5)
BUSY = Rule(least_used=1.0, least_gain=0.0, worth_power=3.0, priced=True)
"""The rule behind a policy: it gets as much done at once as it can. Jobs are complete sooner, and run slower."""
LEAST_VALUE = 0.9
HYBRID_BRANCH = "E"
"""Of ``deepshare-hybrid``. This, LEAST_VALUE, and the powers in BUSY were chosen on sets 10 to 19 of the four mixes."""


def _baseline(name: str, order: Order) -> Profile:
    allocation = (Rounds(), StopAll(), Strict())
    return Profile(name, order, EvenSpread(), NoSharing(), allocation, patience_s=math.inf)


def greedy(
    table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None, rule: Rule = GREEDY
) -> Profile:
    """The greedy rule alone.

    Args:
        table: How much jobs slow each other down; None predicts it from the traffic of the paper's six models.
        speeds: Speeds of jobs alone by how they are spread, if measured.
        rule: What it is after.
    """
    allocation = (ContentionAware(speeds, rule=rule),)
    return Profile(
        "deepshare-greedy",
        LeastService(),
        sharing=NoSharing(),
        allocation=allocation,
        reactions=(PreemptOnSlowdown(math.inf),),  # it only learns
        patience_s=math.inf,
        learned=_known(table),
    )


def hybrid(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    policy: Policy | None = None,
    *,
    limit: float = SLOWDOWN_LIMIT,
    round_s: float = 0.0,
    rule: Rule | None = None,
    least_value: float = LEAST_VALUE,
) -> Profile:
    """RL-Hybrid (§IV): a policy, the greedy rule where it starts nothing, and preemption of jobs that are slowed down.

    Without a policy the rule is all there is, and looks after running times: below three quarters of the devices in
    use it also starts jobs that will slow each other down a lot, if clearly more is done in all. Behind a policy it is
    there to keep the cluster busy (§IV): it starts whatever lets more be done in all as long as any device is free. The
    policy is then asked only about the jobs that come first: the paper's reward, by which it was trained, has no word
    for completion, and it would rather begin with the largest. And the rule guards it: of starts that it values nearly
    alike, the policy chooses. In the paper the policy is free, and asked first: ``least_value=0``.

    Args:
        table: As for :func:`greedy`; it learns from measured slowdowns.
        speeds: As for :func:`greedy`.
        policy: What decides first, such as :func:`~prefect_gpu.papers.deepshare.shipped.shipped`; None: the greedy
            rule decides alone.
        limit: Slowdown above which a job is stopped.
        round_s: Decide only so often; a policy that was trained in rounds wants 300. 0: whenever something changes.
        rule: What the rule is after; None: what is said above.
        least_value: See :class:`~prefect_gpu.papers.deepshare.greedy.ContentionAware`.
    """
    greedy_rule = ContentionAware(
        speeds,
        policy,
        rule=rule or (CALM if policy is None else BUSY),
        least_value=least_value,
        head=1.0,
        fewest=True,
        exchanges=policy is not None,
    )
    return Profile(
        "deepshare" if policy is None else "deepshare-hybrid",
        LeastService(),
        sharing=NoSharing(),
        allocation=(Rounds(round_s), greedy_rule),
        reactions=(PreemptOnSlowdown(limit, foreseen=policy is not None),),
        patience_s=math.inf,
        learned=_known(table),
    )


def base(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    policy: TrainedPolicy | None = None,
    *,
    limit: float = SLOWDOWN_LIMIT,
    most_stops: float = MOST_STOPS,
    round_s: float = 0.0,
) -> Profile:
    """RL-base (§IV): the network's action alone, and preemption of jobs that are slowed down.

    The greedy rule only starts jobs that the network has no action for, such as one of a single GPU.

    Args:
        table: As for :func:`hybrid`; the network does not see it.
        speeds: As for :func:`hybrid`.
        policy: The network; None: the one of branch B that comes with the package.
        limit: Slowdown from which on a job is stopped, foreseen or not.
        most_stops: How often a job is stopped at most.
        round_s: As for :func:`hybrid`.
    """
    known = shipped("B") if policy is None else policy
    allocation = (Rounds(round_s), ContentionAware(speeds, known, rule_for=lambda way: not known.knows(way)))
    return Profile(
        "deepshare-base",
        LeastService(),
        sharing=NoSharing(),
        allocation=allocation,
        # Whoever was stopped may meet the same jobs again, as in the paper: the network decides, and it cannot know.
        reactions=(PreemptOnSlowdown(limit, most_stops, foreseen=True, parts=False),),
        patience_s=math.inf,
        learned=_known(table),
    )


def search(table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None) -> Profile:
    """All compositions of jobs on each group of nodes are looked at; see :class:`.Composed`.

    Args:
        table: As for :func:`greedy`.
        speeds: As for :func:`greedy`.
    """
    return Profile(
        "deepshare-search",
        LeastService(),
        sharing=NoSharing(),
        allocation=(Composed(speeds), ContentionAware(speeds)),
        patience_s=math.inf,
        learned=_known(table),
    )


def predicted() -> SensitivityTable:
    """A table that predicts contention from the traffic of the paper's models (Table I), and learns."""
    return SensitivityTable(traffic=TRAFFIC)


def _known(table: SensitivityTable | None) -> Learned:
    return Learned(predicted() if table is None else table)


def _trained(maker: Callable[..., Profile], branch: str, name: str) -> Callable[[], Profile]:
    return lambda: replace(maker(policy=shipped(branch)), name=name)


PROFILES: dict[str, Callable[[], Profile]] = {
    "deepshare": hybrid,
    "deepshare-greedy": greedy,
    "deepshare-search": search,
    "deepshare-las": lambda: _baseline("deepshare-las", MostServed()),
    "deepshare-srtf": lambda: _baseline("deepshare-srtf", LeastComplete()),
}
for _name, _maker, _usual in (("deepshare-base", base, "B"), ("deepshare-hybrid", hybrid, HYBRID_BRANCH)):
    for _branch in available():
        _full = f"{_name}-{_branch.lower()}"
        PROFILES[_full] = _trained(_maker, _branch, _full)
        if _branch == _usual:
            PROFILES[_name] = _trained(_maker, _branch, _name)
