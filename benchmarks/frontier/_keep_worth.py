"""Of the kinds of nodes that could take a job, the one whose rest is worth the most to the jobs that are expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from benchmarks.frontier._asked import Asked, AskedType, type_of
from prefect_gpu.papers.fgd.device_values import WHOLE_MILLI
from prefect_gpu.papers.fgd.fragments import Ask, Fragments, Rest
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.granting import grant
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.state import State

_GIB = 2**30
_CLEARLY = 0.05
"""The part of a device's worth that has to be saved for a node other than the usual one."""

Known = tuple[tuple[AskedType, int], ...]
Kinds = tuple[tuple[int, int, int], ...]  # (bytes of each device, devices of a node, devices in all)


class KeepWorth(PlacementPolicy):
    """Chooses between kinds of nodes, by the memory and the number of their devices, so that scarce ones stay usable.

    Whether a job fits, joins others or spans nodes is for the other policy to say. Only where that gives a job free
    devices of one node, this one looks at the fullest node of each other kind; it takes that one if it clearly
    saves worth (:class:`~prefect_gpu.papers.fgd.fragments.Fragments`). What is expected is what the
    pool has seen (:class:`~benchmarks.frontier._asked.Asked`). Before that is enough, and where all nodes are
    alike, nothing is different: among these, the fullest is as good.

    Args:
        otherwise: For everything else.
    """

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise
        self._asked, self._seen = Asked(), set[str]()
        self._made: tuple[Known, Kinds, Fragments] | None = None

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        usual = self._otherwise.place(job, state, sharing, kept)
        if job.id not in self._seen:
            self._seen.add(job.id)
            self._asked.submitted(job)
        known = self._asked.known
        if usual is None or kept or not known or not state.all_uniform or len(usual.parts) > 1:
            return usual
        asked = type_of(job)
        if asked is None or not all(map(state.is_free, usual.devices)):
            return usual
        kinds = _kinds(state)
        ask = _ask(asked, kinds) if len(kinds) > 1 else None
        if ask is None:
            return usual
        fullest: dict[tuple[int, int], tuple[int, int]] = {}
        for books, free, alike in state.groups_with_free(asked.devices):
            first = books.node.devices[0]
            if job.fits_on(first):
                kind = first.memory_bytes, len(books.node.devices)
                fullest[kind] = min(fullest.get(kind, (free, alike[0])), (free, alike[0]))
        if len(fullest) < 2:
            return usual
        fragments = self._fragments(known, kinds)
        loss, number = min((fragments.loss(_rest(*kind, free), ask)[0], at) for kind, (free, at) in fullest.items())
        there = state.nodes[usual.node]
        rest = _rest(there.devices[0].memory_bytes, len(there.devices), state.free_on(there.id))
        if fragments.loss(rest, ask)[0] - loss < _CLEARLY * WHOLE_MILLI:
            return usual
        node = state.numbered[number].node
        devices = state.free_devices(node.id)[: asked.devices]
        return grant(job, node, tuple(device.id for device in devices), state, sharing)

    def _fragments(self, known: Known, kinds: Kinds) -> Fragments:
        """Made anew when what is known, or the nodes, have changed."""
        if self._made is None or self._made[:2] != (known, kinds):
            expected: Counter[Ask] = Counter()
            for asked, count in known:
                ask = _ask(asked, kinds)
                if ask is not None:
                    expected[ask] += count
            fragments = Fragments(expected, {_model(size, each): total for size, each, total in kinds})
            self._made = known, kinds, fragments
        return self._made[2]


def _kinds(state: State) -> Kinds:
    counts: Counter[tuple[int, int]] = Counter()
    for books in state.numbered:
        devices = books.node.devices
        if devices:
            counts[devices[0].memory_bytes, len(devices)] += len(devices)
    return tuple(sorted((size, each, total) for (size, each), total in counts.items()))


def _model(size: int, each: int) -> str:
    return f"{each} x {size}"


def _ask(asked: AskedType, kinds: Kinds) -> Ask | None:
    """What a type asks for, as the kernel counts; None if no node can ever hold it."""
    fitting = [(size, each) for size, each, _ in kinds if size >= asked.gib * _GIB and each >= asked.devices]
    if not fitting:
        return None
    milli = WHOLE_MILLI
    if asked.part and asked.devices == 1:
        milli = max(1, -(-WHOLE_MILLI * asked.gib * _GIB // fitting[0][0]))
    models = () if len(fitting) == len(kinds) else fitting
    return Ask(0, 0, milli, asked.devices, frozenset(_model(size, each) for size, each in models))


def _rest(size: int, each: int, free: int) -> Rest:
    """Devices that somebody is on count as used up: what is left of them is for those who join."""
    return Rest(_model(size, each), 0, 0, (0,) * (each - free) + (WHOLE_MILLI,) * free)
