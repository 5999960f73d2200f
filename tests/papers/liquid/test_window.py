"""Jobs that arrive shortly after one another are placed together."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.liquid.window import Window
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Hold, Launch
from prefect_gpu.scheduling.profiles import Profile
from tests.scheduling.placement.test_gangs import PS_TWO, Play, nodes


def test_jobs_that_come_within_a_window_are_placed_together_when_it_closes() -> None:
    play = Play(Profile("test", allocation=(Window(5.0), Batch(), Backfill())), *nodes(2, 2, 2))
    (hold,) = play.submit("first", PS_TWO)
    assert isinstance(hold, Hold) and hold.code == "due"
    play.now = 3.0
    play.submit("second", PS_TWO)
    assert play.scheduler.next_due() == 5.0
    play.now = 5.0
    said = play.tell(ev.TimePassed())
    assert {one.job for one in said if isinstance(one, Launch)} == {"first", "second"}
    assert all(len(set(play.where(job).split())) == 1 for job in ("first", "second"))


def test_a_batch_is_placed_at_once_when_others_wait_already() -> None:
    play = Play(Profile("test", allocation=(Window(5.0), Batch(), Backfill())), *nodes(2))
    for job in ("first", "second"):
        play.submit(job, PS_TWO)
    play.now = 5.0
    play.tell(ev.TimePassed())
    play.now = 10.0
    (launch,) = [one for one in play.tell(ev.JobEnded("first", "done")) if isinstance(one, Launch)]
    assert launch.job == "second"


def test_a_window_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="give seconds"):
        Window(-1.0)
