"""Profiles that go by what the runs of a pool cannot say are not for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from prefect_gpu.papers.coda.multi_array import MultiArray
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import all_profiles, get_live_profile, get_profile
from tests.scheduling.kinds import KINDS
from tests.scheduling.world import World, node
from tests.support import examples

NOT_LIVE = {"coda-drf": "owner", "drf": "owner", "priority": "priority"}
LIVE = sorted(set(all_profiles()) - set(NOT_LIVE))


@pytest.mark.parametrize(("name", "field"), NOT_LIVE.items())
def test_the_refusal_names_the_field_the_value_the_reason_and_the_remedy(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"profile='{name}' orders runs by their {field}") as refused:
        get_live_profile(name)
    for part in ("cannot state yet", "first come, first served", "such as adaptive", "simulate` knows"):
        assert part in str(refused.value)
    assert get_profile(name).name == name, "a simulation can have it"


@pytest.mark.parametrize("name", LIVE)
def test_all_others_can_be_had(name: str) -> None:
    assert get_live_profile(name).name == name


def test_a_profile_that_nobody_knows_is_refused_as_before() -> None:
    with pytest.raises(ValueError, match="profile='best' is not known"):
        get_live_profile("best")


def starts(name: str, requests: list[Request]) -> list[str]:
    """The jobs in the order in which they start when all of them have come while the two devices were in use."""
    world = World(node("n", 8, 8), profile=get_profile(name))
    world.submit("first", "second", request=replace(requests[0], gpus=1))
    for number, request in enumerate(requests):
        world.now += 1.0
        world.submit(f"job-{number}", request=request)
    while world.places:
        world.end(min(world.places))
    return world.launched


claims = st.builds(Request, owner=st.sampled_from(["", "ada", "bob"]), priority=st.integers(0, 2))


@settings(max_examples=examples(0.1))
@given(st.lists(claims, min_size=2, max_size=5))
def test_an_order_that_is_had_live_does_not_depend_on_what_live_runs_cannot_say(said: list[Request]) -> None:
    silent = [Request() for _ in said]
    for name in sorted(KINDS.keys() & set(LIVE)):
        if not any(
            isinstance(one, MultiArray) for one in get_profile(name).allocation
        ):  # whose arrays are divided between owners
            note(f"profile {name}")
            assert starts(name, said) == starts(name, silent)


@pytest.mark.parametrize("name", NOT_LIVE)
def test_what_is_refused_would_be_fifo_where_nobody_says_it(name: str) -> None:
    said = [Request(owner="ada"), Request(owner="ada"), Request(owner="bob", priority=1)]
    silent = [Request() for _ in said]
    assert starts(name, silent) == starts("fifo", silent)
    assert starts(name, said).index("job-2") < starts("fifo", said).index("job-2")
