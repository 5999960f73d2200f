"""A run's time limit: it ends when its time is over, to the last bit of a second."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from prefect_gpu.scheduling.model.instructions import Expire
from prefect_gpu.scheduling.model.jobs import Request
from tests.scheduling.world import World, node


@given(granted_at=st.floats(1000.0, 1100.0), limit_s=st.integers(1, 100))
@example(granted_at=1006.9515378530847, limit_s=21)  # as it is due, 1e-13 s are left, which no later moment has
def test_a_run_ends_at_the_moment_for_which_it_asked_to_be_woken(granted_at: float, limit_s: int) -> None:
    world = World(node("a", 8))
    world.now = granted_at
    world.submit("one", request=Request(time_limit_s=float(limit_s)))
    world.train("one")
    world.now = due = world.scheduler.next_due() or 0.0
    assert [one for one in world.wait(0.0) if isinstance(one, Expire)], world.scheduler.next_due() == due
