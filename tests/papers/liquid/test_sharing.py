"""Who shares a device by estimates, and what of it a run is granted."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.liquid.sharing import EstimatedUse
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile
from tests.scheduling.placement.test_gangs import Play, nodes
from tests.scheduling.world import GIB

SHARES = Request(gpu_memory_bytes=2 * GIB, exclusive=False)
# estimates of two jobs (utilisation, memory in GiB), and whether they share the one device
USE = {
    "halves share": ((0.5, 2), (0.5, 2), True),
    "together they use too much of it": ((0.6, 2), (0.5, 2), False),
    "together they need too much memory": ((0.1, 5), (0.1, 5), False),
    "what is declared counts if more": ((0.1, 1), (0.1, 6), True),
    "an unknown utilisation is all of it": ((None, 2), (0.5, 2), False),
}


@pytest.mark.parametrize("one, other, together", USE.values(), ids=USE.keys())
def test_who_shares_by_estimated_use(
    one: tuple[float | None, int], other: tuple[float | None, int], together: bool
) -> None:
    play = Play(Profile("test", sharing=EstimatedUse()), *nodes(1))
    for job, (utilisation, gib) in (("one", one), ("other", other)):
        play.submit(job, SHARES, Estimate(utilisation=utilisation, memory_bytes=gib * GIB))
    assert (play.where("other") == "a") is together


def test_a_run_is_capped_at_the_larger_of_what_it_declares_and_is_estimated_to_need() -> None:
    play = Play(Profile("test", sharing=EstimatedUse()), *nodes(1))
    play.submit("one", SHARES, Estimate(utilisation=0.2, memory_bytes=3 * GIB))
    play.submit("other", SHARES, Estimate(utilisation=0.2, memory_bytes=1 * GIB))
    one, other = play.place("one"), play.place("other")
    assert one is not None and other is not None
    assert (one.memory_bytes, other.memory_bytes) == (3 * GIB, 2 * GIB)


def test_a_run_that_wants_its_device_alone_has_it_alone() -> None:
    play = Play(Profile("test", sharing=EstimatedUse()), *nodes(1))
    play.submit("one", Request(gpu_memory_bytes=GIB), Estimate(utilisation=0.1, memory_bytes=GIB))
    play.submit("other", SHARES, Estimate(utilisation=0.1, memory_bytes=GIB))
    assert play.where("other") == ""
