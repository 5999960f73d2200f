"""Of places that are equally good for a job, the one that leaves the most to the jobs that are expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import NamedTuple

from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.granting import grant
from prefect_gpu.scheduling.placement.kernels.device_values import WHOLE_MILLI
from prefect_gpu.scheduling.placement.kernels.fragments import Ask, Fragments, Rest
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.asked import GIB, AskedType, Known, type_of
from prefect_gpu.scheduling.state.capability import gibibytes
from prefect_gpu.scheduling.state.endings import can_take
from prefect_gpu.scheduling.state.state import State

CLEARLY = 0.05
"""The part of a device's worth that has to be saved for a node other than the usual one."""


class _Kind(NamedTuple):
    """Nodes that are alike: bytes of each device, and how many devices one has."""

    size: int
    each: int

    @property
    def model(self) -> str:
        return f"{self.each} x {self.size}"


_Kinds = tuple[tuple[_Kind, int], ...]  # with all devices of the kind


class KeepWorth(PlacementPolicy):
    """Chooses among free devices by what is lost to the jobs that are expected, so that scarce ones stay usable.

    Whether a job fits, joins others or spans nodes is for the other policy to say: it never keeps a job from starting.
    Only where that gives a job free devices of one node, this one looks at the other nodes that have as many free: at
    the fullest of each kind, by the number and the memory of its devices. It takes that one if it clearly saves worth
    (:class:`~.kernels.fragments.Fragments`). What is expected is what was asked for
    (:class:`~prefect_gpu.scheduling.state.asked.Asked`). Before enough is known, where all jobs ask for the same, and
    where all nodes are of one kind, nothing is different.

    Args:
        otherwise: For everything else.
    """

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise
        self._kinds: _Kinds = ()
        self._seen: tuple[State | None, int] = (None, -1)
        self._made: tuple[Known, _Kinds, Fragments] | None = None
        self._chosen: tuple[Placement, str] | None = None

    def suited_to(self, abilities: Abilities) -> PlacementPolicy:
        """See :class:`.PlacementPolicy`."""
        return KeepWorth(self._otherwise.suited_to(abilities))

    def why(self, placement: Placement) -> str:
        """See :class:`.PlacementPolicy`."""
        if self._chosen is not None and self._chosen[0] is placement:
            return self._chosen[1]
        return self._otherwise.why(placement)

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        usual, known = self._otherwise.place(job, state, sharing, kept), state.learned.asked.known
        bound = kept or job.request.needs_links or state.promises.jobs
        if usual is None or usual.others or bound or len(known) < 2 or not state.all_uniform:
            return usual
        asked, kinds = type_of(job), self._kinds_of(state)
        if asked is None or len(kinds) < 2 or not all(map(state.is_free, usual.devices)):
            return usual
        ask = _ask(asked, kinds)
        if ask is None:
            return usual
        fragments = self._fragments(known, kinds)
        there, free = _kind(state, state.number_of(usual.devices[0])), state.free_on(usual.node)
        least = _loss(fragments, there, free, ask) - CLEARLY * WHOLE_MILLI
        found: int | None = None
        for kind, others, number in _fullest(job, asked.devices, state):
            loss = _loss(fragments, kind, others, ask)
            if loss < least:
                least, found = loss, number
        if found is None:
            return usual
        node = state.numbered[found].node
        chosen = grant(job, node, tuple(one.id for one in state.free_devices(node.id)[: asked.devices]), state, sharing)
        self._chosen = chosen, _words(there, _kind(state, found), free, asked, known)
        return chosen

    def _kinds_of(self, state: State) -> _Kinds:
        """Made anew when the nodes have changed."""
        seen = (state, state.version)
        if self._seen != seen:
            counts: Counter[_Kind] = Counter()
            for books in state.numbered:
                if books.node.devices:
                    counts[_kind(state, books.number)] += len(books.node.devices)
            self._seen, self._kinds = seen, tuple(sorted(counts.items()))
        return self._kinds

    def _fragments(self, known: Known, kinds: _Kinds) -> Fragments:
        """Made anew when what is known, or the nodes, have changed."""
        if self._made is None or self._made[0] is not known or self._made[1] is not kinds:
            expected: Counter[Ask] = Counter()
            for asked, count in known:
                ask = _ask(asked, kinds)
                if ask is not None:
                    expected[ask] += count
            made = Fragments(expected, {kind.model: total for kind, total in kinds}, passing=True)
            self._made = known, kinds, made
        return self._made[2]


def _kind(state: State, number: int) -> _Kind:
    devices = state.numbered[number].node.devices
    return _Kind(devices[0].memory_bytes, len(devices))


def _fullest(job: Job, devices: int, state: State) -> Iterator[tuple[_Kind, int, int]]:
    """Of each kind that could take a job, the fullest node that has so many devices free: (kind, free, number)."""
    found: dict[_Kind, tuple[int, int]] = {}
    for books, free, alike in state.groups_with_free(devices):
        if can_take(job, books.node.devices[0], state):
            kind = _kind(state, books.number)
            found[kind] = min(found.get(kind, (free, alike[0])), (free, alike[0]))
    return ((kind, *found[kind]) for kind in sorted(found))


def _ask(asked: AskedType, kinds: _Kinds) -> Ask | None:
    """What a type asks for, as the kernel counts; None if no node can ever hold it.

    Its memory says which kinds will do. That it may be too wide for some is no reason for a price: it would be put on
    single devices too, which nobody wide could use.
    """
    fitting = [kind for kind, _ in kinds if kind.size >= asked.gib * GIB]
    if not any(kind.each >= asked.devices for kind in fitting):
        return None
    milli = WHOLE_MILLI
    if asked.part and asked.devices == 1:
        milli = max(1, -(-WHOLE_MILLI * asked.gib * GIB // fitting[0].size))
    models = () if len(fitting) == len(kinds) else fitting
    return Ask(0, 0, milli, asked.devices, frozenset(kind.model for kind in models))


def _loss(fragments: Fragments, kind: _Kind, free: int, ask: Ask) -> float:
    """Devices that somebody is on count as used up: what is left of them is for those who join."""
    rest = Rest(kind.model, 0, 0, (0,) * (kind.each - free) + (WHOLE_MILLI,) * free)
    return fragments.loss(rest, ask)[0]


def _words(usual: _Kind, chosen: _Kind, free: int, asked: AskedType, known: Known) -> str:
    """What stays free at the usual place for whom; empty where no one type says it."""
    total = sum(count for _, count in known)
    larger = sum(count for one, count in known if chosen.size < one.gib * GIB <= usual.size)
    if larger:
        part = max(1, round(100 * larger / total))
        return f"a device with {gibibytes(usual.size)} stays free for runs that need it, {part}% of those that came"
    widest = max((one.devices for one, _ in known if free - asked.devices < one.devices <= free), default=0)
    return f"{widest} devices of one node stay free for runs that ask for as many" if widest > 1 else ""
