"""When an allocation is given back: what counts as nobody needing it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from prefect_gpu.runtime.drivers.base import Demand, Wanted
from prefect_gpu.runtime.drivers.slurm import supply, words
from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
from prefect_gpu.runtime.drivers.slurm.cluster import SlurmJob
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.runtime.drivers.slurm.pilots import Pilot, Pilots
from prefect_gpu.runtime.drivers.slurm.shapes import Plan, Shape
from prefect_gpu.scheduling.model.jobs import Request

IDLE_S = 100.0
SHAPE = Shape("one", 60, (Part(gres="gpu:1", cpus=8),), maximum=4)
# One allocation's worth of work for one device, and less than that.
ONE_RUN = Demand(waiting=(Wanted(Request(gpus=1), expected_s=1.0),))
NOBODY = Demand()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is set by hand."""
    clock = SimpleNamespace(at=1000.0)
    monkeypatch.setattr(supply, "time", SimpleNamespace(monotonic=lambda: clock.at, time=lambda: clock.at))
    return clock


def make(tmp_path: Path, state: str, *names: str) -> supply.Supply:
    logger = logging.getLogger("test")
    pilots = Pilots(SlurmClient(), tmp_path, "pool-", logger)
    for name in names:
        pilots.all[name] = Pilot(name, words.Record("token", "one"), SlurmJob(name, name, state))
    return supply.Supply(SlurmClient(), Plan((SHAPE,), idle_s=IDLE_S), pilots, logger)


@pytest.mark.parametrize(("seconds", "given_back"), [(IDLE_S - 1, 0), (IDLE_S, 1)])
def test_of_two_idle_ones_the_one_that_nobody_needs_goes_although_somebody_waits(
    tmp_path: Path, now: SimpleNamespace, seconds: float, given_back: int
) -> None:
    supplied = make(tmp_path, "RUNNING", "a", "b")
    assert not supplied.decide(ONE_RUN, lambda pilot, busy: False).give_back
    now.at += seconds
    assert len(supplied.decide(ONE_RUN, lambda pilot, busy: False).give_back) == given_back


def test_one_that_has_not_begun_is_kept_while_somebody_waits_for_it(tmp_path: Path, now: SimpleNamespace) -> None:
    supplied = make(tmp_path, "PENDING", "a")
    for _ in range(5):
        assert not supplied.decide(ONE_RUN, lambda pilot, busy: False).give_back
        now.at += IDLE_S
    now.at -= IDLE_S / 2
    supplied.pilots.all["a"].job = SlurmJob("a", "a", "RUNNING")
    assert not supplied.decide(NOBODY, lambda pilot, busy: False).give_back, "it was needed a moment ago"


def test_work_begins_the_time_anew(tmp_path: Path, now: SimpleNamespace) -> None:
    supplied = make(tmp_path, "RUNNING", "a")
    for _ in range(3):
        now.at += IDLE_S - 1
        assert not supplied.decide(NOBODY, lambda pilot, busy: False).give_back
        assert not supplied.decide(NOBODY, lambda pilot, busy: True).give_back
    now.at += IDLE_S
    assert supplied.decide(NOBODY, lambda pilot, busy: False).give_back == ("a",)


def test_after_a_change_of_the_shared_folder_idle_ones_go_and_another_one_is_asked_for(
    tmp_path: Path, now: SimpleNamespace
) -> None:
    supplied = make(tmp_path, "RUNNING", "idle", "busy")
    supplied.plan = dataclasses.replace(supplied.plan, shared=False)
    waiting = Demand(waiting=(Wanted(Request(gpus=1)),))
    decision = supplied.decide(waiting, lambda pilot, busy: pilot.name == "busy")
    assert decision.submit == {"one": 1}
    assert [pilot.given_back for pilot in supplied.pilots.all.values()] == [True, False]
