"""Of free devices, those are taken that jobs which are expected need least."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.instructions import Instruction, Launch
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.placement.keep_worth import KeepWorth
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import KnownCompany
from prefect_gpu.scheduling.state.asked import ENOUGH, Asked, AskedType, type_of
from tests.scheduling.world import World, asks, node

SMALL, LARGE = node("small", 40, 40, 40, 40), node("large", 80, 80)
SOME_NEED_LARGE = ev.RequestsLearned(((AskedType(1, 10, False), 40), (AskedType(1, 60, False), 20)))


def keeps(*nodes: Node) -> World:
    return World(*nodes, profile=Profile("test", placement=KeepWorth(Spread()), sharing=KnownCompany()))


def test_a_small_run_leaves_the_large_device_free_though_it_would_fill_its_node() -> None:
    world = keeps(SMALL, LARGE)
    world.submit("a", request=asks(1, 60))
    before = world.submit("b", request=asks(1, 10))
    assert world.places == {"a": "large0", "b": "large1"}, "the fullest node, as long as nobody knows better"
    world.end("b")
    world.handle(SOME_NEED_LARGE)
    [said] = world.submit("c", request=asks(1, 10))
    assert isinstance(said, Launch) and isinstance(before[0], Launch)
    assert before[0].reason == "large1 is free"
    assert said.reason == (
        "small0 is free, and a device with 80GiB stays free for runs that need it, 34% of those that came"
    )
    assert world.places["c"] == "small0"


def test_a_small_run_that_shares_leaves_it_free_too() -> None:
    world = keeps(LARGE, SMALL)
    world.handle(SOME_NEED_LARGE)
    world.submit("a", request=asks(1, 10, shares=True))
    assert world.places == {"a": "small0"}


def test_it_takes_the_large_one_where_nothing_else_is_free() -> None:
    world = keeps(SMALL, LARGE)
    world.handle(SOME_NEED_LARGE)
    world.submit(*"abcdef", request=asks(1, 10))
    assert world.places["e"] == "large0" and world.places["f"] == "large1"


def test_devices_of_one_node_stay_together_for_runs_that_ask_for_several() -> None:
    pair, eight = node("pair", 40, 40), node("eight", *[40] * 8)
    world = keeps(eight)
    world.submit("a", request=asks())
    world.handle(ev.NodesChanged((pair, eight)))
    world.handle(ev.RequestsLearned(((AskedType(1, 0, False), 30), (AskedType(2, 0, False), 30))))
    [said] = world.submit("b", request=asks())
    assert isinstance(said, Launch)
    assert said.reason == ("eight1 is free, and 2 devices of one node stay free for runs that ask for as many")


def test_a_single_device_is_not_kept_for_runs_that_could_not_use_it() -> None:
    """Runs of eight devices fit on large nodes only, but none on one of which seven are in use."""
    large = node("large", *[80] * 8)
    world = keeps(large)
    world.submit("a", request=asks(7))
    world.handle(ev.NodesChanged((SMALL, large)))
    world.handle(ev.RequestsLearned(((AskedType(1, 10, False), 40), (AskedType(8, 10, False), 20))))
    world.submit("b", request=asks(1, 10))
    assert world.places["b"] == "large7"


def test_what_it_has_seen_itself_counts_and_a_job_only_once() -> None:
    world = keeps(SMALL, LARGE)
    for number in range(ENOUGH):
        for _ in range(2):
            world.submit(f"j{number}", request=asks(1, 60 if number % 2 else 10))
    assert world.state.learned.asked.known == ((AskedType(1, 10, False), 25), (AskedType(1, 60, False), 25))


def test_types_that_no_longer_come_are_forgotten() -> None:
    asked = Asked()
    old, new = AskedType(1, 10, False), AskedType(2, 20, False)
    asked.remembered([(old, 800), (new, 800)])
    asked.remembered([(new, 1)] * 16_000)
    assert dict(asked.known).get(old, 0) <= 1 < dict(asked.known)[new] <= 2400


def test_of_very_many_types_the_rarest_are_forgotten_and_nonsense_is_not_counted() -> None:
    asked = Asked()
    asked.remembered([(AskedType(1, gib, False), 1 + gib) for gib in range(1000)])
    assert len(asked.known) <= 64
    nothing = Asked()
    nothing.remembered([(AskedType(0, 1, False), 99), (AskedType(1, -1, False), 99), (AskedType(1, 1, False), -99)])
    assert nothing.known == ()


def test_gangs_and_runs_without_devices_are_of_no_type() -> None:
    for request in (Request(0), Request(1, workers=2)):
        assert type_of(Job("a", request, "q", 0.0, 0.0)) is None


KINDS = st.tuples(st.integers(1, 4), st.sampled_from([8, 24, 40, 80]))
CLUSTERS = st.lists(KINDS, min_size=1, max_size=4).map(
    lambda kinds: [node(f"n{at}-", *[size] * count) for at, (count, size) in enumerate(kinds)]
)
ASKS = st.builds(asks, st.sampled_from([1, 1, 1, 2, 4]), st.sampled_from([None, 2, 10, 30, 60]), shares=st.booleans())
TYPES = st.lists(
    st.tuples(
        st.builds(AskedType, st.sampled_from([1, 2, 4]), st.sampled_from([0, 2, 10, 30, 60]), st.booleans()),
        st.integers(ENOUGH, 100),
    ),
    max_size=5,
).map(tuple)
STEPS = st.lists(st.tuples(ASKS, st.booleans()), min_size=1, max_size=14)


@settings(deadline=None)
@given(CLUSTERS, TYPES, STEPS)
def test_it_refuses_nothing_stays_within_the_memory_and_always_says_the_same(
    nodes: list[Node], types: tuple[tuple[AskedType, int], ...], steps: list[tuple[Request, bool]]
) -> None:
    """``World`` checks the books after each event: nobody is granted more memory than there is, or shares unasked."""

    def play() -> list[Instruction]:
        world, sharing = keeps(*nodes), KnownCompany()
        world.handle(ev.RequestsLearned(types))
        for number, (request, ends) in enumerate(steps):
            name = f"j{number}"
            world.submit(name, request=request)
            job = world.state.jobs[name]
            if job.placement is None:
                assert Spread().place(job, world.state, sharing) is None, "it fits nowhere"
            else:
                assert all(job.fits_on(world.state.device(device)) for device in job.placement.devices)
                assert len(set(job.placement.devices)) == request.gpus
                if ends:
                    world.end(name)
        return world.instructions

    assert play() == play()
