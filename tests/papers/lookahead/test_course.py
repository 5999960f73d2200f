"""What would come of an order of starts: times by hand for a few gangs, and room that is never exceeded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.lookahead.course import Course, Member, Sites, course, is_across

# Four nodes of two devices in two racks; links of 100 bytes/s, uplinks of 10.
SITES = Sites((0, 0, 1, 1), (0, 0), (100.0,) * 4, (10.0, 10.0))
FREE = (2, 2, 2, 2)


def gang(name: str, workers: int = 2, service_s: float = 10.0, sent_bps: float = 10.0, **more: float) -> Member:
    return Member(name, workers, 1, service_s, sent_bps=sent_bps, **more)  # type: ignore[arg-type]


def play(free: tuple[int, ...], *order: Member, running: tuple[Member, ...] = (), near: str = "") -> Course:
    found = course(SITES, free, running, order, near.split())
    assert found is not None
    return found


# free devices, workers: seconds from the start of its training to its end. Alone on a node it trains for 10 s.
SPREADS = {
    "one node holds it": ((2, 1, 0, 0), 2, 10.0),
    "its links are used for a tenth of its time": ((1, 1, 0, 0), 2, 11.0),
    "the uplinks for as long as it trains": ((1, 0, 0, 1), 2, 20.0),
    "three go to one rack": ((1, 1, 2, 1), 3, 11.0),
}


@pytest.mark.parametrize(("free", "workers", "seconds"), SPREADS.values(), ids=SPREADS.keys())
def test_a_gang_alone_is_slowed_down_by_its_narrowest_link(free: tuple[int, ...], workers: int, seconds: float) -> None:
    assert play(free, gang("a", workers)).ends == {"a": pytest.approx(seconds)}


def test_launching_and_saving_take_their_time_and_the_devices() -> None:
    found = play((0, 0, 1, 1), gang("a", launching_s=2.0, saving_s=3.0), gang("b"))
    assert found.ends == {"a": pytest.approx(16.0), "b": pytest.approx(27.0)}
    assert found.starts["b"][0] == pytest.approx(16.0)


def test_two_gangs_on_the_uplinks_wait_for_each_other_until_one_has_ended() -> None:
    """Each would use them for half of its time, so that both train for 10 + 10 × 1.5 s; then one is alone."""
    pair = (Member("a", 2, 1, 10.0, sent_bps=10.0, plan=(0, 2)), Member("b", 2, 1, 20.0, sent_bps=10.0, plan=(1, 3)))
    ends = play((1, 1, 1, 1), running=pair).ends
    assert ends == {"a": pytest.approx(25.0), "b": pytest.approx(25.0 + 10.0 * 2.0)}


def test_one_that_is_to_be_near_waits_for_a_rack_and_others_pass_it() -> None:
    there = Member("there", 1, 1, 5.0, plan=(1,))
    far, near = (
        play((1, 0, 1, 0), gang("a"), gang("b", 1, 4.0, 0.0), running=(there,), near=names) for names in ("", "a")
    )
    assert far.starts == {"a": (0.0, (0, 2)), "b": (pytest.approx(5.0), (1,))}
    assert near.starts == {"b": (0.0, (0,)), "a": (pytest.approx(5.0), (0, 1))}
    assert (near.ends["a"], far.ends["a"]) == (pytest.approx(16.0), pytest.approx(20.0))


def test_a_link_of_unknown_bandwidth_is_never_in_the_way() -> None:
    unknown = Sites((0, 1), (0, 0), (0.0, 0.0), (0.0, 0.0))
    found = course(unknown, (1, 1), (), (gang("a"),))
    assert found is not None and found.ends == {"a": pytest.approx(10.0)}


def test_nobody_straddles_domains_and_who_never_starts_is_no_course() -> None:
    apart = Sites((0, 1), (0, 1), (0.0, 0.0), (0.0, 0.0))
    assert course(apart, (1, 1), (), (gang("a"),)) is None
    assert course(SITES, (1, 0, 1, 0), (), (gang("a"),), ("a",)) is None


members = st.builds(
    Member,
    st.just(""),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from([0.0, 1.0, 3.3, 1e6]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 1.0, 50.0]),
)


@given(st.lists(members, max_size=8), st.data())
def test_no_node_ever_holds_more_than_it_has(drawn: list[Member], data: st.DataObject) -> None:
    order = [
        Member(str(at), one.workers, one.gpus, one.service_s, one.launching_s, one.saving_s, one.sent_bps)
        for at, one in enumerate(drawn)
    ]
    near = data.draw(st.sets(st.sampled_from([one.name for one in order]))) if order else set()
    found = course(SITES, FREE, (), order, near)
    if found is None:
        assert any(one.name in near and one.workers * one.gpus > 4 for one in order)
        return
    assert set(found.starts) == set(found.ends) == {one.name for one in order}
    for moment, _ in found.starts.values():
        held = [0] * 4
        for one in order:
            start, plan = found.starts[one.name]
            assert len(plan) == one.workers and not (one.name in near and is_across(plan, SITES))
            assert found.ends[one.name] >= start + one.launching_s + one.service_s + one.saving_s - 1e-3
            if start <= moment < found.ends[one.name]:
                for node in plan:
                    held[node] += one.gpus
        assert all(held[node] <= FREE[node] for node in range(4))


def test_nobody_passes_one_that_is_never_to_be_passed() -> None:
    there = Member("there", 1, 1, 5.0, plan=(1,))
    order = (gang("a", 4), gang("b", 1, 4.0, 0.0))
    passed = course(Sites((0, 0), (0,), (0.0, 0.0), (0.0,)), (2, 1), (there,), order)
    kept = course(Sites((0, 0), (0,), (0.0, 0.0), (0.0,)), (2, 1), (there,), order, (), ("a",))
    assert passed is not None and kept is not None
    assert (passed.starts["b"][0], passed.starts["a"][0]) == (0.0, pytest.approx(5.0))
    assert (kept.starts["a"][0], kept.starts["b"][0]) == (pytest.approx(5.0), pytest.approx(15.0))
