"""Who slows whom down on a shared network, and what to start beside what (Ryu & Eo, 2023), on plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.units import plural

FLOOR = 0.35
"""No ratio is believed to be lower."""

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


def placed_key(request: Request, placement: Placement) -> Key:
    """What contention is known for, of a job where it is: its program, on its devices, over so many nodes."""
    nodes = {part.node for part in placement.parts if part.devices}
    return Key(request.kind, len(placement.all_devices), len(nodes))


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
    traffic, as far as that was measured or is known; else nothing is known against it, and the ratio is 1.

    Args:
        measured: Ratio of the first key's throughput beside the second. Ratios above 1 are noise and count as 1.
        traffic: How each model communicates.
    """

    def __init__(
        self,
        measured: Mapping[tuple[Key, Key], float] | None = None,
        traffic: Mapping[str, Traffic] | None = None,
    ) -> None:
        self._link_bytes_per_s = LINK_BYTES_PER_S
        self._traffic = dict(traffic or {})
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
            return max(FLOOR, found[0])
        if own.nodes == 1 or other.nodes == 1:
            return 1.0
        return self.of_models(own.model, other.model)

    def of_models(self, own: str, other: str) -> float:
        """The same, of two models on several nodes, whatever their sizes."""
        found = self._of_models.get((own, other))
        if found is not None:
            return max(FLOOR, found[0])
        mine, theirs = self.traffic_of(own), self.traffic_of(other)
        if mine is None or theirs is None:
            return 1.0
        return max(FLOOR, predicted_ratio(mine, theirs, self._link_bytes_per_s))

    def traffic_of(self, model: str) -> Traffic | None:
        """How a model communicates; None: unknown."""
        return self._traffic.get(model)

    @property
    def silent(self) -> bool:
        """Whether nothing is known of anybody."""
        return not (self._measured or self._traffic)

    def knows(self, model: str) -> bool:
        """Whether anything is known of a model: how it communicates, or what it and another one do to each other."""
        return model in self._traffic or model in self._known_models

    def worths(self, keys: Iterable[Key], power: float = 2.0) -> dict[Key, float]:
        """What a second of each job's work is worth while all of these models are about.

        1 ÷ (its mean ratio beside each of them)^power: whom nearly all others slow down is served first where he has
        good company, as there will be little of that. The power is ours: of 0 to 4, 2 and 3 were best in the mixes of
        §VI.
        """
        asked = set(keys)
        models = sorted({key.model for key in asked})
        sums = {own: sum(self.of_models(own, other) for other in models) for own in models}
        return {key: (len(models) / sums[key.model]) ** power for key in asked}

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


class Gains:
    """What starts would bring at one decision: the sum of the changes of everybody's ratio.

    Args:
        running: The running jobs.
        table: How much jobs suffer from each other.
        least_ratio: Nobody may end up slower than this.
        least_gain: The changes in ratio must sum up to more than this.
        worths: Weights of the changes in ratio; 1 for all others.
    """

    def __init__(
        self,
        running: Sequence[Running],
        table: SensitivityTable,
        least_ratio: float = LEAST_RATIO,
        least_gain: float = -float("inf"),
        worths: Mapping[Key, float] | None = None,
    ) -> None:
        self._table, self._least_ratio, self._least_gain, self._worths = table, least_ratio, least_gain, worths or {}
        self._running = []  # with their ratios
        for job in running:
            beside = (other.key for other in running if other is not job and other.nodes & job.nodes)
            self._running.append((job, table.among(job.key, beside)))
        self._known: dict[tuple[Key, frozenset[int]], float | None] = {}

    def of(self, key: Key, nodes: frozenset[int]) -> float | None:
        """Sum of the changes, weighted, if a job of this key started there; None if that is out of the question."""
        if (key, nodes) not in self._known:  # many jobs share a key, and only their remaining time tells them apart
            self._known[key, nodes] = self._sum(key, nodes)
        return self._known[key, nodes]

    def _sum(self, key: Key, nodes: frozenset[int]) -> float | None:
        own = 1.0
        change = weighted = 0.0
        for job, ratio in self._running:
            if not job.nodes & nodes:
                continue
            own = min(own, self._table.ratio(key, job.key))
            after = min(ratio, self._table.ratio(job.key, key))
            if own < self._least_ratio or after < self._least_ratio:
                return None
            change += after - ratio
            weighted += (after - ratio) * self._worths.get(job.key, 1.0)
        return weighted + own * self._worths.get(key, 1.0) if change + own > self._least_gain else None


def starts(
    candidates: Iterable[Candidate], free: Mapping[int, int], gains: Gains
) -> Iterator[tuple[float, Candidate, Start]]:
    """All starts that fit, and leave every affected job fast enough: (gain, the way to start it, the start).

    Args:
        candidates: Ways to start the waiting jobs; a job may have several.
        free: GPUs free on each node.
        gains: What starts would bring.

    Raises:
        ValueError: A candidate has no time left or its GPUs cannot be spread evenly.
    """
    for one in candidates:
        key = one.key
        if not one.remaining_s > 0:
            raise ValueError(f"remaining_s of job {one.job} is {one.remaining_s}: give seconds above 0")
        if key.gpus % key.nodes:
            raise ValueError(f"job {one.job} has {key.gpus} GPUs, which do not spread evenly over {key.nodes} nodes")
        for nodes in one.nodes:
            if all(free.get(node, 0) >= key.gpus // key.nodes for node in nodes):
                gain = gains.of(key, nodes)
                if gain is not None:
                    yield gain, one, Start(one.job, key, nodes)


def choose_start(candidates: Iterable[Candidate], free: Mapping[int, int], gains: Gains) -> Start | None:
    """The greedy rule: what to start next, or None if nothing may be; see :func:`starts`.

    The one with the largest gain ÷ (its remaining isolated time × GPUs). Call it again with the chosen one among the
    running jobs until it returns None. Ties go to the earlier candidate and to its earlier nodes.
    """
    found = starts(candidates, free, gains)
    best = max(found, key=lambda found: found[0] / (found[1].remaining_s * found[1].key.gpus), default=None)
    return best[2] if best is not None else None


def in_words(start: Start, running: Iterable[Running], table: SensitivityTable) -> str:
    """What a start means for the job itself."""
    others = [one.key for one in running if one.nodes & start.nodes]
    company = f"beside {plural(len(others), 'other run')}" if others else "alone"
    where = f"its {len(start.nodes)} nodes" if len(start.nodes) > 1 else "its node"
    return f"it is expected to keep {table.among(start.key, others):.0%} of its speed {company} on {where}"
