"""Whose are the nodes' GPUs and cores?"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefect_gpu.papers.coda.arrays import Arrays, Offer, reserved_cores
from prefect_gpu.papers.coda.books import Ask, NodeSize
from tests.support import examples


class OpenArrays(Arrays):
    """Arrays whose books can be looked into, and which carry out their offers."""

    @property
    def wide_nodes(self) -> tuple[str, ...]:
        """The nodes of the 4-GPU sub-array."""
        return tuple(name for name, book in self._books.items() if book.wide)

    def free(self, node: str) -> tuple[int, int]:
        """Free (GPUs, cores) of a node."""
        book = self._books[node]
        return book.free_gpus, book.free_cores

    def held(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each job that holds something."""
        return {job: nodes for job, (_, nodes) in self._held.items()}

    def start(self, ask: Ask, offer: Offer) -> None:
        """Enter what an offer says: the jobs that give back, and the one that starts."""
        moving = [(self._held[job][0], nodes) for job, nodes in offer.moved]
        for job in (*offer.aborted, *(job for job, _ in offer.moved)):
            self.release(job)
        for one, nodes in ((ask, offer.nodes), *moving):
            self.enter([(node, one) for node in nodes])


def cluster(narrow: int = 1, wide: int = 1, gpus: int = 4, cores: int = 16, reserved: int = 8) -> OpenArrays:
    """Nodes w0, w1, ... of the 4-GPU sub-array and n0, n1, ... of the 1-GPU sub-array, all alike."""
    nodes = [NodeSize(f"w{number}", gpus, cores) for number in range(wide)]
    nodes += [NodeSize(f"n{number}", gpus, cores) for number in range(narrow)]
    return OpenArrays(nodes, {node.id: reserved for node in nodes}, wide * gpus)


def start(arrays: OpenArrays, *asks: Ask) -> list[Offer]:
    """Start jobs one after the other; each must find a place."""
    offers = []
    for ask in asks:
        offer = arrays.find(ask)
        assert offer is not None, ask
        arrays.start(ask, offer)
        offers.append(offer)
    return offers


def gpu(name: str, gpus: int, cores: int = 1, instances: int = 1) -> Ask:
    """A GPU job."""
    return Ask(name, gpus, cores, instances)


def cpu(name: str, cores: int, instances: int = 1) -> Ask:
    """A CPU job."""
    return Ask(name, 0, cores, instances)


# the cluster, the jobs that run already, the one that asks, and its offer (None: it waits)
TABLE: dict[str, tuple[OpenArrays, list[Ask], Ask, Offer | None]] = {
    "a small job goes to the 1-GPU sub-array": (cluster(), [], gpu("a", 1), Offer(("n0",))),
    "a job of four GPUs goes to the 4-GPU sub-array": (cluster(), [], gpu("a", 4), Offer(("w0",))),
    "a small job fills the node that it leaves fullest": (
        cluster(narrow=2),
        [gpu("x", 2), gpu("y", 3)],
        gpu("a", 1),
        Offer(("n1",)),
    ),
    "a small job overflows once its sub-array is full": (
        cluster(),
        [gpu("x", 3), gpu("y", 1)],
        gpu("a", 1),
        Offer(("w0",), overflows=True),
    ),
    "a job of four GPUs overflows once its sub-array is full": (
        cluster(),
        [gpu("x", 4)],
        gpu("a", 4),
        Offer(("n0",), overflows=True),
    ),
    "a job of four GPUs waits when no node has four free": (
        cluster(),
        [gpu("x", 4), gpu("y", 1)],
        gpu("a", 4),
        None,
    ),
    "smaller jobs move out when a job of four GPUs needs its sub-array": (
        cluster(),
        [gpu("x", 3), gpu("y", 1), gpu("z", 1)],  # z overflows; then x ends
        gpu("a", 4),
        Offer(("w0",), moved=(("z", ("n0",)),)),
    ),
    "smaller jobs that fit nowhere else return to their array": (
        cluster(),
        [gpu("x", 3), gpu("y", 1), gpu("z", 2)],
        gpu("a", 4),
        Offer(("w0",), moved=(("z", ()),)),
    ),
    "as few smaller jobs as possible move out": (
        cluster(gpus=8),
        [gpu("x", 3), gpu("x2", 3), gpu("x3", 2), gpu("s", 1), gpu("m", 3), gpu("t", 1)],
        gpu("a", 6),
        Offer(("w0",), moved=(("m", ()),)),
    ),
    "a job of four GPUs in its sub-array is never moved for another": (
        cluster(narrow=0),
        [gpu("x", 4)],
        gpu("a", 4),
        None,
    ),
    "a gang takes several nodes": (cluster(narrow=0, wide=2), [], gpu("a", 4, instances=2), Offer(("w0", "w1"))),
    "a gang gets all of its nodes or none": (cluster(narrow=0, wide=2), [gpu("x", 4)], gpu("a", 4, instances=2), None),
    "a gang of small instances belongs to the 4-GPU sub-array": (
        cluster(),
        [],
        gpu("a", 2, instances=2),
        Offer(("w0", "w0")),
    ),
    "a CPU job uses the cores of its own array": (cluster(), [], cpu("a", 8), Offer(("w0",))),
    "a CPU job goes first to where no GPU is free": (
        cluster(),
        [gpu("x", 3), gpu("y", 1)],
        cpu("a", 2),
        Offer(("n0",)),
    ),
    "a CPU job borrows reserved cores that are idle": (
        cluster(wide=0),
        [cpu("x", 8)],
        cpu("a", 4),
        Offer(("n0",), overflows=True),
    ),
    "a CPU job waits when no cores are free": (cluster(wide=0), [cpu("x", 8), cpu("y", 8)], cpu("a", 1), None),
    "a GPU job takes reserved cores back from the CPU job that came last": (
        cluster(wide=0),
        [cpu("x", 8), cpu("y", 4), cpu("z", 4)],
        gpu("a", 1, cores=3),
        Offer(("n0",), aborted=("z",)),
    ),
    "it takes back from as many as it takes": (
        cluster(wide=0),
        [cpu("x", 8), cpu("y", 4), cpu("z", 4)],
        gpu("a", 1, cores=6),
        Offer(("n0",), aborted=("z", "y")),
    ),
    "the CPU array's own cores are not taken": (
        cluster(wide=0),
        [cpu("x", 8), cpu("y", 4), cpu("z", 4)],
        gpu("a", 1, cores=9),
        None,
    ),
    "idle cores of the CPU array serve GPU jobs": (cluster(wide=0), [], gpu("a", 1, cores=12), Offer(("n0",))),
    "a free node is preferred to one where a CPU job must go": (
        cluster(wide=0, narrow=2),
        [cpu("x", 16)],
        gpu("a", 1, cores=4),
        Offer(("n1",)),
    ),
    "cores are taken back in its own sub-array before another's GPUs are used": (
        cluster(),
        [cpu("w", 8), cpu("x", 8), cpu("y", 4), cpu("z", 8)],  # four cores are left on w0 and none on n0
        gpu("a", 1, cores=4),
        Offer(("n0",), aborted=("z",)),
    ),
    "a job that asks for more than any node has waits": (cluster(), [], gpu("a", 5), None),
}

BEFORE = {"smaller jobs move out when a job of four GPUs needs its sub-array": ["y"]}
"""Jobs that end before the one in question asks."""


@pytest.mark.parametrize("case", TABLE)
def test_offers(case: str) -> None:
    arrays, running, ask, expected = TABLE[case]
    start(arrays, *running)
    for job in BEFORE.get(case, []):
        arrays.release(job)
    if case.startswith("smaller jobs move out"):  # keep four GPUs from being free in the 1-GPU sub-array
        assert arrays.free("n0")[0] == 1
    before = arrays.held()
    assert arrays.find(ask) == expected
    assert arrays.held() == before


def test_starting_enters_what_the_offer_says() -> None:
    arrays = cluster()
    start(arrays, gpu("x", 3), gpu("y", 1), gpu("z", 1), cpu("c", 8))
    arrays.release("y")
    start(arrays, gpu("a", 4))
    assert arrays.held() == {"x": ("n0",), "c": ("n0",), "a": ("w0",), "z": ("n0",)}
    assert [arrays.free(node) for node in ("w0", "n0")] == [(0, 15), (0, 6)]
    arrays.release("a")
    arrays.release("a")
    assert arrays.free("w0") == (4, 16)


def test_senseless_input_is_refused() -> None:
    with pytest.raises(ValueError, match="asks 0 x"):
        gpu("a", 1, instances=0)


def test_the_4_gpu_sub_array_gets_whole_nodes_the_largest_first() -> None:
    nodes = [NodeSize("small", 2, 8), NodeSize("five", 5, 20), NodeSize("eight", 8, 32), NodeSize("none", 0, 64)]
    assert OpenArrays(nodes, {}, 0).wide_nodes == ()
    assert OpenArrays(nodes, {}, 8).wide_nodes == ("eight",)
    assert OpenArrays(nodes, {}, 9).wide_nodes == ("five", "eight")
    assert OpenArrays(nodes, {}, 99).wide_nodes == ("small", "five", "eight")


def test_reserved_cores_are_what_the_history_says_that_the_gpus_need() -> None:
    node = NodeSize("n", 5, 28)
    assert reserved_cores([(1, 3), (4, 12)], node) == 15
    assert reserved_cores([(1, 4), (2, 3)], node) == 12  # 7 / 3 per GPU
    assert reserved_cores([(1, 30)], node) == 28
    assert reserved_cores([], node) == 5


class Books(RuleBasedStateMachine):
    """Jobs come and go at random, against a model that believes only the offers."""

    @initialize(
        sizes=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
        wide=st.integers(0, 16),
    )
    def begin(self, sizes: list[tuple[int, int, int]], wide: int) -> None:
        self.sizes = {f"n{number}": (gpus, cores) for number, (gpus, cores, _) in enumerate(sizes)}
        reserved = {f"n{number}": min(cores, found) for number, (_, cores, found) in enumerate(sizes)}
        self.arrays = OpenArrays([NodeSize(name, *size) for name, size in self.sizes.items()], reserved, wide)
        self.model: dict[str, tuple[Ask, tuple[str, ...]]] = {}
        self.number = 0

    @rule(
        gpus=st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 8]),
        cores=st.integers(0, 6),
        instances=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def ask(self, gpus: int, cores: int, instances: int) -> None:
        self.number += 1
        ask = Ask(f"j{self.number}", gpus, cores, instances)
        offer = self.arrays.find(ask)
        assert offer == self.arrays.find(ask)
        if offer is None:
            return
        assert len(offer.nodes) == instances
        for job in offer.aborted:
            assert gpus
            assert self.model[job][0].gpus == 0
            assert self.model.pop(job)[0].cores > 0
        for job, nodes in offer.moved:
            smaller, there = self.model.pop(job)
            assert ask.wide and smaller.gpus and not smaller.wide
            assert set(there) & set(self.arrays.wide_nodes)
            assert len(nodes) in (0, smaller.instances)
            if nodes:
                self.model[job] = (smaller, nodes)
        self.model[ask.id] = (ask, offer.nodes)
        self.arrays.start(ask, offer)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.model:
            job = data.draw(st.sampled_from(sorted(self.model)))
            del self.model[job]
            self.arrays.release(job)

    @invariant()
    def gpus_and_cores_are_conserved(self) -> None:
        assert self.arrays.held() == {job: nodes for job, (_, nodes) in self.model.items()}
        for node, (gpus, cores) in self.sizes.items():
            for ask, nodes in self.model.values():
                gpus -= ask.gpus * nodes.count(node)
                cores -= ask.cores * nodes.count(node)
            assert self.arrays.free(node) == (gpus, cores)
            assert gpus >= 0
            assert cores >= 0


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(0.4), stateful_step_count=25, deadline=None)
