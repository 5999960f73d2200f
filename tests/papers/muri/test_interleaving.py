"""Cycles of jobs that interleave their stages on shared GPUs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.muri.interleaving import MEASURED_FACTORS, Interleaving, Mixture, Profile, modelled_cycle

LOADER = Profile(490, 446, 8, 0)
COMPUTER = Profile(426, 0.6, 410, 0)
stage = st.floats(0.1, 1000).map(lambda value: round(value, 1))
profile = st.builds(lambda a, b, c: Profile(a + b + c, a, b, c), stage, stage, stage)


def mixture_of(model: Interleaving, *profiles: Profile) -> Mixture:
    return model.mixture([model.number(each) for each in profiles])


@given(profile)
def test_the_cycle_of_one_job_is_its_iteration_time(one: Profile) -> None:
    model = Interleaving()
    assert mixture_of(model, one).cycle == pytest.approx(one.iteration * 1.015)
    assert mixture_of(model, one).throughput == pytest.approx(1)


@pytest.mark.parametrize(
    ("profiles", "cycle"),
    [
        # alternating: max(load a, rest of b) + max(load b, rest of a)
        ((Profile(10, 5, 4, 1), Profile(10, 5, 4, 1)), 10),
        ((LOADER, COMPUTER), 446 + 8),
        # two computations cannot overlap
        ((Profile(10, 0, 10, 0), Profile(10, 0, 10, 0)), 20),
        # four jobs of one stage each take turns at it
        ((Profile(10, 0, 10, 0),) * 4, 40),
        # a loads for two slots, while the other three compute and synchronise
        ((Profile(30, 30, 0, 0), Profile(10, 0, 10, 0), Profile(10, 0, 10, 0)), 30),
    ],
)
def test_worked_cycles(profiles: tuple[Profile, ...], cycle: float) -> None:
    assert modelled_cycle(profiles) == pytest.approx(cycle)


def test_the_measured_factor_depends_on_how_many_share() -> None:
    model = Interleaving()
    alike = Profile(10, 0, 10, 0)
    for count in (2, 3, 4):
        modelled = modelled_cycle([alike] * count)
        assert mixture_of(model, *[alike] * count).cycle == pytest.approx(modelled * MEASURED_FACTORS[count - 1])


@given(st.lists(profile, min_size=2, max_size=4))
def test_the_order_of_the_jobs_does_not_matter(profiles: list[Profile]) -> None:
    model = Interleaving()
    assert len({id(mixture_of(model, *order)) for order in itertools.permutations(profiles)}) == 1


@given(st.lists(profile, min_size=2, max_size=3), profile)
def test_a_job_grows_a_mixture_only_if_sharing_beats_taking_turns(profiles: list[Profile], one: Profile) -> None:
    model = Interleaving()
    before = mixture_of(model, *profiles)
    grown = model.grown(before, model.number(one))
    together = mixture_of(model, *profiles, one)
    assert grown is (together if together.throughput >= 1 else None)


@given(st.lists(profile, min_size=2, max_size=4), profile)
def test_replacing_there_and_back_changes_nothing(profiles: list[Profile], one: Profile) -> None:
    model = Interleaving(factors=(1, 0.01, 0.01, 0.01))  # everything is worth sharing
    first, other = model.number(profiles[0]), model.number(one)
    before = mixture_of(model, *profiles)
    changed = model.replaced(before, first, other)
    assert changed is not None
    assert model.replaced(changed, other, first) is before
    rest = model.reduced(before, first)  # one job is left at least
    assert rest is not None
    assert model.grown(rest, first) is before


def test_no_more_jobs_share_than_there_are_factors() -> None:
    model = Interleaving(factors=(1, 1))
    pair = mixture_of(model, LOADER, COMPUTER)
    assert model.grown(pair, model.number(COMPUTER)) is None
    with pytest.raises(ValueError, match="one to 2"):
        mixture_of(model, LOADER, COMPUTER, COMPUTER)


@pytest.mark.parametrize("factors", [(), (1,) * 5, (1, 0), (1, float("nan"))])
def test_factors_must_be_one_to_four_positive_numbers(factors: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="factors"):
        Interleaving(factors)


@pytest.mark.parametrize(("bad", "name"), [(Profile(0, 1, 1, 1), "iteration"), (Profile(1, -1, 1, 1), "stages")])
def test_a_profile_needs_an_iteration_and_no_negative_stage(bad: Profile, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Interleaving().number(bad)
