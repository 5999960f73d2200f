"""Who slows whom down on a shared network, and what to start beside what (Ryu & Eo, 2023), on plain numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.scheduling.model.jobs import Request

FLOOR = 0.35
LEAST_RATIO = 0.6
LINK_BYTES_PER_S = 5e9
_HALF_PRESSURE = 0.1  # a job that sends at a tenth of the link's rate exerts half of the full pressure
_STRETCH = 2.0  # two jobs of full pressure make communication take this much longer again


class Key(NamedTuple):
    """What contention is measured for: a model on so many GPUs in all, spread evenly over so many nodes."""

    model: str
    gpus: int
    nodes: int


@dataclass(frozen=True)
class Traffic:
    """How a model communicates when it trains alone (Table I).

    Attributes:
        bytes_per_s: Mean bandwidth.
        comm_to_comp: Seconds of communication per second of computation.
    """

    bytes_per_s: float
    comm_to_comp: float

    def __post_init__(self) -> None:
        for name in ("bytes_per_s", "comm_to_comp"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give a number of at least 0")


TRAFFIC: Mapping[str, Traffic] = {
    "GraphSage": Traffic(24.63e6, 0.57),
    "MobileNetV3": Traffic(211.25e6, 2.43),
    "DLRM": Traffic(170.28e6, 13.36),
    "Transformer-XL": Traffic(854.82e6, 1.87),
    "FSDP": Traffic(2672.40e6, 7.32),
    "MoE": Traffic(929.48e6, 13.79),
}
"""The paper's models (Table I)."""

OF_CATEGORY: Mapping[str, Traffic] = {
    "cv": TRAFFIC["MobileNetV3"],
    "nlp": TRAFFIC["Transformer-XL"],
    "recommendation": TRAFFIC["DLRM"],
}
"""What a program of a category is taken to communicate like until it was measured: the paper's model of that kind."""


def placed_key(request: Request, placement: Placement) -> Key:
    """What contention is known for, of a job where it is: its program, on its devices, over so many nodes."""
    nodes = {part.node for part in placement.parts if part.devices}
    return Key(request.kind, request.total_gpus, len(nodes))


def predicted_ratio(own: Traffic, other: Traffic, link_bytes_per_s: float = LINK_BYTES_PER_S) -> float:
    """A job's throughput beside another as a fraction of that alone, from how both communicate.

    CS = 1 + 2·c·x_own·x_other with c = comm ÷ (comm + comp), the part of its time in which the job can be held up, and
    the pressure x = b ÷ (b + link/10) of a mean bandwidth b. The rule is ours. On the 36 × 36 pairs that the paper's
    authors publish its mean error is 0.10 (the mean of each pair of models: 0.07, one mean for all: 0.15).
    """
    half = _HALF_PRESSURE * link_bytes_per_s
    if not half > 0:
        raise ValueError(f"link_bytes_per_s is {link_bytes_per_s}: give the link's rate, above 0")
    share = own.comm_to_comp / (1 + own.comm_to_comp)
    pressures = [traffic.bytes_per_s / (traffic.bytes_per_s + half) for traffic in (own, other)]
    return 1 / (1 + _STRETCH * share * pressures[0] * pressures[1])


class SensitivityTable:
    """Throughput ratios (1 ÷ contention sensitivity CS, so in (0, 1]) of pairs of co-located jobs.

    A pair is looked up as measured; else it is 1 if one of the two is on one node, as that one sends nothing over the
    network; else it is the mean of what was measured of the two models at other sizes; else it is predicted from their
    traffic, as far as that was measured, is known, or is that of their category; else nothing is known against it, and
    the ratio is 1.

    Args:
        measured: Ratio of the first key's throughput beside the second. Ratios above 1 are noise and count as 1.
        traffic: How each model communicates.
        floor: No ratio is believed to be lower.
        guesses: Whether a model is taken to communicate like others of its category until more is known of it.
    """

    def __init__(
        self,
        measured: Mapping[tuple[Key, Key], float] | None = None,
        traffic: Mapping[str, Traffic] | None = None,
        floor: float = FLOOR,
        *,
        guesses: bool = True,
    ) -> None:
        if not 0 < floor <= 1:
            raise ValueError(f"floor is {floor}: give a ratio above 0 and at most 1, such as {FLOOR}")
        self.floor = floor
        self._guesses = guesses
        self._link_bytes_per_s = LINK_BYTES_PER_S
        self._traffic = dict(traffic or {})
        self._supposed: dict[str, Traffic] = {}
        self._measured: dict[tuple[Key, Key], tuple[float, int]] = {}
        self._of_models: dict[tuple[str, str], tuple[float, int]] = {}
        self._known_models: set[str] = set()
        for (own, other), ratio in (measured or {}).items():
            self.learn(own, other, ratio)

    def learn(self, own: Key, other: Key, ratio: float) -> None:
        """Take a measured ratio of a job beside one other; measurements of the same pair are averaged.

        Raises:
            ValueError: The ratio is not a positive number.
        """
        if not 0 < ratio < float("inf"):
            raise ValueError(f"ratio of {own} beside {other} is {ratio}: give contended ÷ ideal throughput, above 0")
        ratio = min(1.0, ratio)
        self._known_models.update((own.model, other.model))
        mean, count = self._measured.get((own, other), (0.0, 0))
        self._measured[own, other] = (mean + (ratio - mean) / (count + 1), count + 1)
        mean, count = self._of_models.get((own.model, other.model), (0.0, 0))
        self._of_models[own.model, other.model] = (mean + (ratio - mean) / (count + 1), count + 1)

    def communicates(self, model: str, traffic: Traffic) -> None:
        """How a model communicates was measured, or measured anew."""
        self._traffic[model] = traffic

    def suppose(self, model: str, category: str | None) -> None:
        """A model of which nothing else is known belongs to a category: see :data:`OF_CATEGORY`."""
        traffic = OF_CATEGORY.get(category or "") if self._guesses else None
        if traffic is not None:
            self._supposed[model] = traffic

    def link(self, bytes_per_s: float) -> None:
        """The rate of the link that co-located jobs share, if it is known.

        Args:
            bytes_per_s: 0 or less: it is not, and what was taken for it stands.
        """
        if bytes_per_s > 0:
            self._link_bytes_per_s = bytes_per_s

    def ratio(self, own: Key, other: Key) -> float:
        """The first job's throughput ratio if it shares a node with the second."""
        found = self._measured.get((own, other))
        if found is not None:
            return max(self.floor, found[0])
        if own.nodes == 1 or other.nodes == 1:
            return 1.0
        return self.of_models(own.model, other.model)

    def of_models(self, own: str, other: str) -> float:
        """The same, of two models on several nodes, whatever their sizes."""
        found = self._of_models.get((own, other))
        if found is not None:
            return max(self.floor, found[0])
        mine, theirs = self._traffic_of(own), self._traffic_of(other)
        if mine is None or theirs is None:
            return 1.0
        return max(self.floor, predicted_ratio(mine, theirs, self._link_bytes_per_s))

    def _traffic_of(self, model: str) -> Traffic | None:
        return self._traffic.get(model) or self._supposed.get(model)

    @property
    def silent(self) -> bool:
        """Whether nothing is known of anybody."""
        return not (self._measured or self._traffic or self._supposed)

    def knows(self, model: str) -> bool:
        """Whether anything is known of a model: how it communicates, or what it and another one do to each other."""
        return self._traffic_of(model) is not None or model in self._known_models

    def worths(self, models: Iterable[str], power: float = 2.0) -> dict[str, float]:
        """What a second of each model's work is worth while all of these are about.

        1 ÷ (its mean ratio beside each of them)^power: whom nearly all others slow down is served first where he has
        good company, as there will be little of that. The power is ours: of 0 to 4, 2 and 3 were best in the mixes of
        §VI.
        """
        found = sorted(set(models))
        return {own: (len(found) / sum(self.of_models(own, other) for other in found)) ** power for own in found}

    def among(self, own: Key, others: Iterable[Key]) -> float:
        """The throughput ratio among several co-located jobs: the worst counts; 1 alone."""
        return min((self.ratio(own, other) for other in others), default=1.0)


@dataclass(frozen=True)
class Running:
    """A job that runs: its key and the nodes that it is on."""

    key: Key
    nodes: frozenset[int]


@dataclass(frozen=True)
class Candidate:
    """A way to start a waiting job.

    Attributes:
        job: Number of the job, for the caller.
        key: Its key when spread over ``nodes``.
        nodes: Sets of that many nodes that could take it, the preferred first.
        remaining_s: Seconds that it still needs, alone and so spread.
    """

    job: int
    key: Key
    nodes: Sequence[frozenset[int]]
    remaining_s: float


@dataclass(frozen=True)
class Start:
    """A job to start, and the nodes to start it on."""

    job: int
    key: Key
    nodes: frozenset[int]


def choose_start(
    candidates: Iterable[Candidate],
    running: Sequence[Running],
    free: Mapping[int, int],
    table: SensitivityTable,
    least_ratio: float = LEAST_RATIO,
    gpus_power: float = 1.0,
    least_gain: float = -float("inf"),
    worths: Mapping[Key, float] | None = None,
    wanted: Collection[Start] = (),
    least_value: float = 1.0,
) -> Start | None:
    """The greedy rule: what to start next, or None if nothing may be.

    Among all starts that fit and leave every affected job, the new one included, a ratio of at least ``least_ratio``,
    the one with the largest (sum of the changes in ratio, its own included) ÷ (its remaining isolated time × GPUs).
    Call it again with the chosen one among ``running`` until it returns None. Ties go to the earlier candidate and to
    its earlier nodes.

    Args:
        candidates: Ways to start the waiting jobs; a job may have several.
        running: The running jobs.
        free: GPUs free on each node.
        table: How much jobs suffer from each other.
        least_ratio: Nobody may end up slower than this.
        gpus_power: Power of the GPUs in the divisor: above 1, jobs of few GPUs are preferred more.
        least_gain: The changes in ratio must sum up to more than this.
        worths: Weights of the changes in ratio; 1 for all others.
        wanted: Starts that somebody else would make. The first of them that comes near enough to the best is chosen.
        least_value: How near: in parts of the best one's value.

    Raises:
        ValueError: A candidate has no time left or its GPUs cannot be spread evenly.
    """
    best_value = -float("inf")
    best: Start | None = None
    ratios = ratios_of(running, table)
    weights = worths or {}
    gains: dict[tuple[Key, frozenset[int]], float | None] = {}

    def value_of(candidate: Candidate, nodes: frozenset[int]) -> float:
        key = candidate.key
        if (key, nodes) not in gains:  # many jobs share a key, and only their remaining time tells them apart
            fits = all(free.get(node, 0) >= key.gpus // key.nodes for node in nodes)
            gains[key, nodes] = (
                gain_of(key, nodes, running, ratios, table, weights, least_ratio, least_gain) if fits else None
            )
        gain = gains[key, nodes]
        return -float("inf") if gain is None else gain / (candidate.remaining_s * key.gpus**gpus_power)

    known = {}
    for candidate in candidates:
        key = candidate.key
        known[candidate.job, key] = candidate
        if not candidate.remaining_s > 0:
            raise ValueError(f"remaining_s of job {candidate.job} is {candidate.remaining_s}: give seconds above 0")
        if key.gpus % key.nodes:
            raise ValueError(
                f"job {candidate.job} has {key.gpus} GPUs, which do not spread evenly over {key.nodes} nodes"
            )
        for nodes in candidate.nodes:
            value = value_of(candidate, nodes)
            if value > best_value:
                best_value = value
                best = Start(candidate.job, key, nodes)
    if best is not None:
        for start in wanted:
            one = known.get((start.job, start.key))
            if one is not None and value_of(one, start.nodes) >= least_value * best_value:
                return start
    return best


def ratios_of(running: Sequence[Running], table: SensitivityTable) -> list[float]:
    """The throughput ratio of each running job among those that share a node with it."""
    return [
        table.among(job.key, (other.key for other in running if other is not job and other.nodes & job.nodes))
        for job in running
    ]


def gain_of(
    key: Key,
    nodes: frozenset[int],
    running: Sequence[Running],
    ratios: Sequence[float],
    table: SensitivityTable,
    worths: Mapping[Key, float],
    least_ratio: float,
    least_gain: float,
) -> float | None:
    """Sum of the changes in ratio, weighted, if a job of this key started there; None if that is out of the question.

    Args:
        running: The running jobs, whose ratios are ``ratios`` now.
        worths: See :func:`choose_start`; so are the last two.
    """
    own = 1.0
    change = weighted = 0.0
    for job, ratio in zip(running, ratios, strict=True):
        if not job.nodes & nodes:
            continue
        own = min(own, table.ratio(key, job.key))
        after = min(ratio, table.ratio(job.key, key))
        if own < least_ratio or after < least_ratio:
            return None
        change += after - ratio
        weighted += (after - ratio) * worths.get(job.key, 1.0)
    return weighted + own * worths.get(key, 1.0) if change + own > least_gain else None


def in_words(start: Start, running: Iterable[Running], table: SensitivityTable) -> str:
    """What a start means for the job itself."""
    others = [one.key for one in running if one.nodes & start.nodes]
    company = f"beside {len(others)} other run{'s' if len(others) > 1 else ''}" if others else "alone"
    where = f"its {len(start.nodes)} nodes" if len(start.nodes) > 1 else "its node"
    return f"it is expected to keep {table.among(start.key, others):.0%} of its speed {company} on {where}"
