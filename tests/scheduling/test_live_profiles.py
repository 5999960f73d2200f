"""Which profiles heed the owner and the priority of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from prefect_gpu.papers.coda.multi_array import MultiArray
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import get_profile
from tests.scheduling.kinds import KINDS
from tests.scheduling.world import World, node
from tests.support import examples


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


# Whose orders or arrays go by what a run says of its owner or its priority.
HEED_OWNERS, HEED_PRIORITIES = {"drf", "coda-drf"}, {"priority", "adaptive"}
claims = st.builds(Request, owner=st.sampled_from(["", "ada", "bob"]), priority=st.integers(0, 2))


def by_arrays(name: str) -> bool:
    """Whether its arrays are divided between owners."""
    return any(isinstance(one, MultiArray) for one in get_profile(name).allocation)


@settings(max_examples=examples(0.1))
@given(st.lists(claims, min_size=2, max_size=5))
def test_what_an_order_does_not_heed_changes_nothing(said: list[Request]) -> None:
    for name in sorted(KINDS):
        note(f"profile {name}")
        heard = [
            Request(
                owner=one.owner if name in HEED_OWNERS or by_arrays(name) else "",
                priority=one.priority if name in HEED_PRIORITIES else 0,
            )
            for one in said
        ]
        assert starts(name, said) == starts(name, heard)


@pytest.mark.parametrize("name", sorted(HEED_OWNERS | HEED_PRIORITIES))
def test_who_has_nothing_yet_or_is_more_urgent_goes_first(name: str) -> None:
    said = [Request(owner="ada"), Request(owner="ada"), Request(owner="bob", priority=1)]
    assert starts(name, said).index("job-2") < starts("fifo", said).index("job-2")
