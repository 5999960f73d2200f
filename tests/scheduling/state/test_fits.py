"""Whether a job fits has one answer, and all that place jobs keep to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.liquid.sharing import EstimatedUse
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile, all_profiles, get_profile
from prefect_gpu.scheduling.sharing.rules import DeclaredMemory, KnownCompany, NoSharing, Sharing
from prefect_gpu.scheduling.state.fits import any_will_do, devices_for, free_by_node, free_devices_for, without
from prefect_gpu.simulation.conformance import NODES, asked, some_state, waiting
from tests.support import examples

DEVICES = [device.id for node in NODES for device in node.devices]
SOME = settings(max_examples=examples(0.5), deadline=None)
running = st.lists(asked, max_size=6)
kept_back = st.sets(st.sampled_from(DEVICES), max_size=4)


@pytest.mark.parametrize("sharing", [NoSharing, DeclaredMemory, EstimatedUse, KnownCompany])
@SOME
@given(running, asked, kept_back)
def test_the_answers_agree_with_each_other(
    sharing: Callable[[], Sharing],
    jobs: list[tuple[Request, Estimate]],
    job: tuple[Request, Estimate],
    kept: set[str],
) -> None:
    state, one, rule = some_state(jobs), waiting(*job), sharing()
    by_number = free_by_node(one, state, kept)
    for number, node in enumerate(NODES):
        some = devices_for(one, node, state, rule, kept)
        free = free_devices_for(one, node.id, state, kept)
        assert [device for device in some if state.is_free(device.id)] == free == by_number.get(number, [])
        assert all(device.memory_bytes >= one.least_bytes and device.id not in kept for device in some)
        assert any_will_do(one, node, state) == all(map(one.fits_on, node.devices))


@SOME
@given(running, asked)
def test_what_could_never_be_given_to_a_job_does_not_fit_now(
    jobs: list[tuple[Request, Estimate]], job: tuple[Request, Estimate]
) -> None:
    state, one = some_state(jobs), waiting(*job)
    ever = state.capability.usable(one.request, one.room_bytes)
    if not state.capability.possible(one.request):
        placement = Profile("fits").placement.place(one, state, DeclaredMemory())
        assert placement is None
    elif not one.request.is_gang and len(ever) >= one.request.gpus > 0:
        with without(list(state.running.values()), state):
            empty = {device.id for node in NODES for device in devices_for(one, node, state, DeclaredMemory())}
        assert ever <= empty, "all that it could ever be given fits it once everybody is gone"


@SOME
@given(running)
def test_the_state_is_as_it_was_after_a_look_at_what_would_fit(jobs: list[tuple[Request, Estimate]]) -> None:
    state = some_state(jobs)
    before = {id_: {job.id for job in state.occupants(id_)} for id_ in DEVICES}
    with without(list(state.running.values()), state):
        assert state.free_count == len(DEVICES)
    assert {id_: {job.id for job in state.occupants(id_)} for id_ in DEVICES} == before
    state.check_invariants()


@SOME
@given(st.sampled_from(sorted(all_profiles())), running, asked, kept_back)
def test_no_profile_places_a_job_where_it_does_not_fit(
    name: str, jobs: list[tuple[Request, Estimate]], job: tuple[Request, Estimate], kept: set[str]
) -> None:
    state, one, profile = some_state(jobs), waiting(*job), get_profile(name)
    placement = profile.placement.place(one, state, profile.sharing, kept)
    for part in placement.parts if placement else ():
        fitting = devices_for(one, state.nodes[part.node], state, profile.sharing, kept)
        assert {device.id for device in fitting}.issuperset(part.devices)
