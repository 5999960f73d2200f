"""Which deadlines are promised, and is every promise planned?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.elastic.promises import Due, Piece, Profile, Promises, plan

SPEED = {1: 1.0, 2: 1.8, 4: 3.0}
FREE = dict.fromkeys(SPEED, 0.0)
GPUS = 8


def due(name: str, work: float, deadline_s: float, *, gpus: int = 0, change_s: float = 0.0) -> Due:
    return Due(name, work, deadline_s, SPEED, dict.fromkeys(SPEED, change_s), gpus)


def promises(gpus: int = 4, *jobs: Due) -> Promises:
    found = Promises(gpus, hand_s=0.0)
    found.update(0.0, [])
    assert found.admit(jobs) == []
    return found


def free(profile: Profile, at: float) -> int:
    return next(gpus for start, gpus in zip(profile.times[::-1], profile.free[::-1], strict=True) if start <= at)


def test_the_smallest_number_of_gpus_that_is_in_time() -> None:
    empty = Profile(4, 0.0)
    assert plan(due("a", 180, 180), empty, 0.0, 180) == [(0, 180, 1)]
    assert plan(due("a", 180, 179), empty, 0.0, 179) == [(0, 100, 2)]
    assert plan(due("a", 180, 61), empty, 0.0, 61) == [(0, 60, 4)]
    assert plan(due("a", 180, 59), empty, 0.0, 59) is None


def test_where_fewer_are_free_it_has_those_and_each_change_costs() -> None:
    """Two GPUs until 100: 90 s × 1.8; then four: 10 s lost, and the other 138 take 46 s."""
    profile = Profile(4, 0.0)
    profile.take([(0.0, 100.0, 2)])
    assert plan(due("a", 300, 156, change_s=10), profile, 0.0, 156) == [(0, 100, 2), (100, 156, 4)]


def test_a_job_whose_gpus_it_has_pays_nothing_to_keep_them() -> None:
    assert plan(due("a", 100, 100, gpus=1, change_s=10), Profile(4, 0.0), 0.0, 100) == [(0, 100, 1)]


def test_nothing_changes_while_gpus_are_held() -> None:
    """Two GPUs become free after 30 s, and are given at 60 s."""
    profile = Profile(2, 0.0)
    profile.take([(0.0, 30.0, 2)])
    assert plan(due("a", 90, 1000), profile, 0.0, 1000, hold_s=60.0) == [(60, 60 + 15 + 90, 1)]


def test_a_profile_forgets_what_was_and_what_does_not_change() -> None:
    profile = Profile(4, 0.0)
    profile.take([(0, 10, 1), (10, 20, 1), (30, 40, 2)])
    profile.forget(5.0)
    assert (profile.times, profile.free) == ([5, 20, 30, 40], [3, 4, 2, 4])
    assert profile.used(4, 5.0, 45.0) == pytest.approx((15 + 20) / 160)


def test_who_does_not_fit_beside_the_others_is_fitted_in_by_planning_all_anew() -> None:
    """The first has one GPU of two until 100, and the second needs both for 40 s: the first then has both, too."""
    found = promises(2, due("long", 100, 100))
    assert found.plans["long"] == [(0, 100, 1)]
    assert found.admit([due("urgent", 72, 45)]) == []
    assert found.plans == {"urgent": [(0, 40, 2)], "long": [(40, pytest.approx(40 + 100 / 1.8), 2)]}


def test_a_refusal_changes_no_plan_and_names_only_that_job() -> None:
    found = promises(4, due("a", 300, 100))
    before = dict(found.plans)
    assert found.admit([due("b", 300, 100), due("c", 30, 110)]) == ["b"]
    assert found.plans == {**before, "c": [(100, 110, 4)]}


def test_with_least_work_first_more_are_promised() -> None:
    found = promises(1)
    assert found.admit([due("large", 100, 100), due("one", 50, 100), due("two", 50, 100)]) == ["large"]


def test_a_dear_job_is_refused_while_gpus_are_scarce() -> None:
    """A hundred jobs of 10 s are usual; one of 1,500 GPU seconds would take what is left until its deadline."""
    found = promises(2, *(due(f"j{n}", 10, 1600) for n in range(100)))
    found.admit([due("filler", 500, 1600)])
    assert found.admit([due("dear", 1500, 1600)]) == ["dear"]
    assert promises(2, due("filler", 1500, 1600)).admit([due("dear", 1500, 1600)]) == []


def test_what_is_left_goes_to_whom_it_costs_least() -> None:
    """Each needs one GPU; of the two that are left, both get one."""
    found = promises(4, due("a", 1000, 1000), due("b", 1000, 1001))
    assert found.sizes() == {"a": 2, "b": 2}
    assert promises(8, due("a", 1000, 1000)).sizes() == {"a": 4}


def test_a_job_that_is_to_start_later_starts_where_gpus_are_left() -> None:
    found = promises(2, due("a", 100, 56), due("b", 100, 1000))
    assert found.sizes() == {"a": 2}
    assert found.next_change_s() == pytest.approx(100 / 1.8)


def test_a_job_that_is_behind_gets_more_gpus() -> None:
    found = promises(4, due("a", 100, 100))
    assert found.sizes()["a"] == 4, "all are left"
    found.update(50.0, [due("a", 80, 100, gpus=1)])
    assert found.plans == {"a": [(50, pytest.approx(50 + 80 / 1.8), 2)]}


def test_a_job_that_is_late_is_planned_all_the_same_and_others_are_still_promised() -> None:
    found = promises(4, due("a", 100, 100))
    found.update(90.0, [due("a", 100, 100, gpus=1)])
    assert found.plans["a"][-1][1] > 100
    assert found.admit([due("b", 30, 100)]) == []
    assert found.plans["b"][-1][1] <= 100


Course = list[tuple[float, list[Due], float]]
SIZES = st.sampled_from([SPEED, {1: 1.0}, {2: 1.0, 8: 2.0}, {1: 0.5, 2: 0.6, 4: 1.0, 8: 1.1}])


@st.composite
def jobs(draw: st.DrawFn, name: str, now: float) -> Due:
    speed = draw(SIZES)
    work, span_s = draw(st.floats(1.0, 5e3)), draw(st.floats(1.0, 1e4))
    return Due(name, work, now + span_s, speed, dict.fromkeys(speed, draw(st.sampled_from([0.0, 12.5]))))


@st.composite
def courses(draw: st.DrawFn) -> Course:
    """Decisions: when, who comes, and how much of its plan everybody has followed by then."""
    found, now = [], 0.0
    for step in range(draw(st.integers(1, 5))):
        now += draw(st.floats(60.0, 2000.0))
        new = [draw(jobs(f"{step}-{n}", now)) for n in range(draw(st.integers(0, 6)))]
        found.append((now, new, draw(st.sampled_from([1.0, 1.0, 0.5, 2.0]))))
    return found


def played(
    course: list[tuple[float, list[Due], float]],
) -> list[tuple[list[str], dict[str, list[Piece]], dict[str, int]]]:
    """What comes out of it; after each decision the plans are looked at."""
    found, active, out, before = Promises(GPUS, hold_s=60.0), dict[str, Due](), [], 0.0
    sizes = dict[str, int]()
    for now, new, pace in course:
        left = {}
        for name, job in active.items():
            size = sizes.get(name, 0)
            done = max(now - before - job.change_s.get(size, 0.0), 0.0) * job.speed.get(size, 0.0) * pace
            if done < job.work:
                left[name] = Due(name, job.work - done, job.deadline_s, job.speed, job.change_s, size)
        found.update(now, left.values())
        planned = dict(found.plans)
        refused = found.admit(new)
        if len(refused) == len(new):
            assert found.plans == planned, "refusals change nothing"
        active = {**left, **{job.id: job for job in new if job.id not in refused}}
        sizes, before = found.sizes(), now
        assert found.plans.keys() == active.keys()
        in_time(found, [job for job in new if job.id not in refused])
        whole(found, now)
        assert sum(sizes.values()) <= GPUS
        assert all(size in active[name].speed for name, size in sizes.items())
        out.append((refused, {name: list(pieces) for name, pieces in found.plans.items()}, sizes))
    return out


def in_time(found: Promises, new: list[Due]) -> None:
    """Who was just promised its deadline has a plan that ends before it, and does its work."""
    for job in new:
        pieces = found.plans[job.id]
        assert pieces[-1][1] <= job.deadline_s - found.hand_s + 1e-6
        assert sum((end - start) * job.speed[gpus] for start, end, gpus in pieces) >= job.work * (1 - 1e-9)


def whole(found: Promises, now: float) -> None:
    """At no time are more GPUs planned than there are, and the profile is what the plans leave."""
    borders = {at for pieces in found.plans.values() for piece in pieces for at in piece[:2] if at >= now} | {now}
    for at in borders:
        used = sum(gpus for pieces in found.plans.values() for start, end, gpus in pieces if start <= at < end)
        assert 0 <= used <= GPUS
        assert free(found.profile, at) == GPUS - used


@given(courses())
def test_plans_fit_and_are_in_time_and_come_out_alike_again(course: Course) -> None:
    assert played(course) == played(course)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """From 0 on: taken in any pieces, also within the time in which nothing can change, and in the end all free."""
    found, left = Profile(GPUS, 0.0), GPUS
    for _ in range(draw(st.integers(0, 5))):
        gpus = draw(st.integers(0, left))
        left -= gpus
        start = draw(st.sampled_from([0.0, 20.0, 60.0, 100.0]))
        found.take([(start, start + draw(st.floats(1.0, 300.0)), gpus)])
    return found


@given(profiles(), jobs("a", 0.0), st.sampled_from([0.0, 60.0]))
def test_a_job_that_may_be_late_always_has_a_plan_among_what_is_free(profile: Profile, job: Due, hold_s: float) -> None:
    pieces = plan(job, profile, 0.0, math.inf, hold_s)
    assert pieces
    assert all(start == 0.0 or start >= hold_s for start, _, _ in pieces)
    profile.take(pieces)
    assert min(profile.free) >= 0
