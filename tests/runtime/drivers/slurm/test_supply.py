"""When an allocation is given back: what counts as nobody needing it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_gpu.runtime.drivers.base import Demand, Wanted
from prefect_gpu.runtime.drivers.slurm import supply, words
from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
from prefect_gpu.runtime.drivers.slurm.cluster import JobEnd, SlurmAway, SlurmJob
from prefect_gpu.runtime.drivers.slurm.outlook import coming
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


@pytest.mark.parametrize(
    ("change", "given_back"),
    [
        ({"minutes": 30}, True),
        ({"setup": ("module load cuda",)}, True),
        ({"maximum": 2}, False),
        ({"name": "two"}, True),
    ],
)
def test_one_that_has_not_begun_goes_if_its_shape_was_changed_and_another_one_is_asked_for(
    tmp_path: Path, now: SimpleNamespace, change: dict[str, Any], given_back: bool
) -> None:
    """Slurm may never start it: that may be why it was changed."""
    shape = dataclasses.replace(SHAPE, **change)
    for state, goes in (("PENDING", given_back), ("RUNNING", False)):
        supplied = make(tmp_path, state, "a")
        pilot = supplied.pilots.all["a"]
        pilot.record = dataclasses.replace(pilot.record, asked=SHAPE.asked)
        supplied.plan = dataclasses.replace(supplied.plan, shapes=(shape,))
        decision = supplied.decide(ONE_RUN, lambda pilot, busy: False)
        assert (pilot.given_back, decision.submit) == (goes, {shape.name: 1} if goes else decision.submit)


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


class Cluster(SlurmClient):
    """In the place of a cluster: its queue is what a test says, and slurmctld goes away in the midst of a look."""

    def __init__(self, *queue: SlurmJob) -> None:
        super().__init__()
        self.queue, self.away, self.cancelled = queue, True, list[str]()

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        return list(self.queue)

    async def ends(self, ids: Iterable[str]) -> Mapping[str, JobEnd]:
        return {}

    async def drained(self) -> Mapping[str, str]:
        self._answers()
        return {}

    async def cancel(self, ids: Iterable[str]) -> None:
        self._answers()
        self.cancelled += ids

    def _answers(self) -> None:
        if self.away:
            raise SlurmAway("slurmctld does not answer")


def supplied_by(cluster: Cluster, tmp_path: Path, **started_at: float) -> supply.Supply:
    logger = logging.getLogger("test")
    pilots = Pilots(cluster, tmp_path, "pool-", logger)
    for number, (name, at) in enumerate(started_at.items(), 7):
        record = words.Record("token", "one", job=str(number), started_at=at)
        pilots.all[name] = Pilot(name, record, SlurmJob(str(number), f"pool-{name}", "RUNNING", starts_at=at))
    return supply.Supply(cluster, Plan((SHAPE,), poll_s=0.0), pilots, logger)


async def test_an_allocation_that_is_over_is_told_although_nobody_says_which_nodes_are_drained(tmp_path: Path) -> None:
    cluster = Cluster(SlurmJob("7", "pool-a", "TIMEOUT"), SlurmJob("8", "pool-b", "RUNNING", starts_at=1.0))
    supplied = supplied_by(cluster, tmp_path, a=1.0, b=1.0)
    assert [pilot.name for pilot, _ in await supplied.look()] == ["a"]
    assert supplied.trouble and list(supplied.pilots.all) == ["b"]
    cluster.away = False
    assert not await supplied.look() and not supplied.trouble


async def test_an_allocation_that_is_over_is_told_later_if_slurm_goes_away_meanwhile(tmp_path: Path) -> None:
    """What it was requeued as is cancelled, which Slurm does not hear."""
    cluster = Cluster(SlurmJob("7", "pool-a", "RUNNING", starts_at=2.0))
    supplied = supplied_by(cluster, tmp_path, a=1.0)
    assert not await supplied.look()
    cluster.away = False
    [(pilot, over)] = await supplied.look()
    assert pilot.name == "a" and "requeued" in over.why and cluster.cancelled == ["7"]
    assert not await supplied.look(), "once"


async def test_after_an_allocation_of_no_use_the_next_one_is_asked_for_later_and_whoever_waits_is_told(
    tmp_path: Path,
) -> None:
    supplied = make(tmp_path, "RUNNING", "a")
    pilots = supplied.pilots
    pilots.useless(pilots.all["a"], "Node n1.7 has no GPU that can be used")
    assert pilots.all["a"].given_back and await pilots.submit(SHAPE) is None, "Slurm is spared"
    said = coming(ONE_RUN.waiting[0], supplied, connecting=False, serving=())
    assert said is not None and said.possible and "n1.7 has no GPU that can be used" in said.words


def test_a_run_is_not_refused_for_want_of_devices_that_its_shape_asks_for(tmp_path: Path) -> None:
    """On one node of a GPU the driver has lost one."""
    supplied = make(tmp_path, "RUNNING", "a", "b", "c", "d")
    [run] = ONE_RUN.waiting
    assert coming(run, supplied, connecting=False, serving=()) is None, "it waits for those that are busy"
    said = coming(run, supplied, connecting=False, serving=(), lacking=["n1.7", "n2.8"])
    assert said is not None and said.possible
    assert "n1.7, n2.8 have fewer GPUs that can be used than it asks for" in said.words
