"""When may an elastic job be resized?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.policies.elasticity import ElasticJob
from prefect_gpu.scheduling.policies.resizing import LEGAL, LOCKED, Lifecycle, Stage, worth_applying

A = ElasticJob("a", 1, 4, (0, 2.0, 3.0, 3.5, 3.9))
B = ElasticJob("b", 1, 4, (0, 1.0, 1.9, 2.7, 3.4))

# before, after, worth the restarts
WORTH = {
    "a rise by one step per second is worth it": ({"a": 1}, {"a": 2}, True),
    "a smaller rise is not": ({"a": 2}, {"a": 4}, False),
    "a sum that falls is not": ({"a": 2, "b": 2}, {"a": 1, "b": 3}, False),
    "a waiting job that starts is always worth it": ({"a": 4}, {"a": 1, "b": 1}, True),
    "nothing new is not worth it": ({"a": 2, "b": 2}, {"a": 2, "b": 2}, False),
    "a job that was listed with no GPU counts as waiting": ({"a": 2, "b": 0}, {"a": 2, "b": 1}, True),
    "a job that would stop lowers the sum": ({"a": 2, "b": 1}, {"a": 3}, False),
}


@pytest.mark.parametrize("case", WORTH)
def test_what_is_worth_a_restart(case: str) -> None:
    before, after, expected = WORTH[case]
    assert worth_applying([A, B], before, after) is expected


def test_a_job_goes_through_the_stages_and_is_protected_for_three_launches() -> None:
    life = Lifecycle()
    for stage, now in [
        (Stage.WAITING_FOR_INITIAL_RESOURCE, 1.0),
        (Stage.STANDBY, 5.0),
        (Stage.LAUNCHING, 6.0),
        (Stage.RUNNING_PROTECTED, 16.0),
    ]:
        life.enter(stage, now)
    assert life.protected_until_s == 46.0
    assert not life.schedulable
    assert not life.wake(45.9)
    assert life.wake(46.0)
    assert life.stage is Stage.RUNNING
    assert life.schedulable
    assert not life.wake(99.0)
    for stage, now in [
        (Stage.CHECKPOINTING, 100.0),
        (Stage.STOPPING, 102.0),
        (Stage.STANDBY, 103.0),
        (Stage.LAUNCHING, 103.0),
        (Stage.RUNNING_PROTECTED, 107.0),
    ]:
        life.enter(stage, now)
    assert life.protected_until_s == 107.0 + 3 * 4.0  # the last launch counts
    life.enter(Stage.FINISHED, 110.0)
    assert life.protected_until_s is None


def test_a_stage_that_cannot_follow_is_refused_with_those_that_can() -> None:
    life = Lifecycle(Stage.RUNNING)
    with pytest.raises(ValueError, match="'launching' cannot follow 'running': only checkpointing, finished can"):
        life.enter(Stage.LAUNCHING, 1.0)
    with pytest.raises(ValueError, match="only nothing can"):
        Lifecycle(Stage.FINISHED).enter(Stage.RUNNING, 1.0)
    with pytest.raises(ValueError, match="give events in order"):
        Lifecycle(Stage.RUNNING, since_s=5.0).enter(Stage.FINISHED, 4.0)


def test_every_stage_is_waiting_locked_schedulable_or_over() -> None:
    for stage in Stage:
        schedulable = Lifecycle(stage).schedulable
        assert not (schedulable and stage in LOCKED)
        assert schedulable or stage in LOCKED or stage in (Stage.FINISHED, Stage.WAITING_FOR_INITIAL_CONTACT)
        assert all(other in LEGAL for other in LEGAL[stage])


@given(st.data())
def test_a_random_walk_along_legal_stages_keeps_the_clock_and_always_can_end(data: st.DataObject) -> None:
    life, now = Lifecycle(), 0.0
    for _ in range(data.draw(st.integers(0, 30))):
        if not LEGAL[life.stage]:
            break
        now += data.draw(st.floats(0, 10))
        life.enter(data.draw(st.sampled_from(sorted(LEGAL[life.stage], key=lambda stage: stage.value))), now)
        assert life.since_s == now
        assert life.launching_s >= 0
    seen = {life.stage}
    while True:
        more = seen | {other for stage in seen for other in LEGAL[stage]}
        if more == seen:
            break
        seen = more
    assert Stage.FINISHED in seen
