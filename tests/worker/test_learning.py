"""What a worker that starts tells its scheduler of the history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.learning.estimates import Estimates
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.interference.sensitivity import Key, Traffic
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.state.asked import AskedType
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Part
from prefect_gpu.worker.learning import PoolLearning
from prefect_gpu.worker.server.lane import Lane
from tests.worker.prefect_stand_in import LOGGER

PARTS = tuple(Part(node=node, devices=(f"{node}0",), role="worker") for node in "mn")


class Learning:
    """The learning side of a pool, and what it says."""

    def __init__(self, history: History) -> None:
        self.said: list[ev.Event] = []
        controller: Any = SimpleNamespace(
            handle=self.said.append,
            fleet=Fleet([Node("m", (), (), network_bps=4e6), Node("n", (), ())]),
            estimates=Estimates(),
            health=SimpleNamespace(found=lambda faults: None),
            scheduler=Scheduler("deepshare"),
        )
        self.learning = PoolLearning(lambda: history, controller, lambda news: None, Lane(), LOGGER)


async def test_what_runs_did_to_each_other_and_asked_for_is_told_once_at_the_start(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path / 'history.db'}") as history:
        history.record_contention(ContentionRow("r", "a", 4, 2, "b", 8, 4, 2.0, measured_at=1.0))
        history.record(HistoryRow("q", "a", "completed", ended_at=1.0, requested_gpus=2))
        pool = Learning(history)
        await pool.learning._remember()
        event, asked = pool.said
        assert isinstance(event, ev.ContentionLearned)
        assert asked == ev.RequestsLearned(((AskedType(2, 0, False), 1),))
        [(own, other, slowdown)] = event.pairs
        assert (own, other) == (Key("a", 4, 2), Key("b", 8, 4))
        assert slowdown == pytest.approx(2.0, rel=0.1)


async def test_an_empty_or_broken_history_says_nothing_until_it_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    with History("sqlite://") as history:
        pool = Learning(history)
        await pool.learning._remember()
        with history._writer.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE prefect_gpu_contention RENAME TO away")
        pool = Learning(history)
        remembers = asyncio.create_task(pool.learning._remember())
        while "could not be read" not in caplog.text:  # noqa: ASYNC110  (it is said in a log)
            await asyncio.sleep(0.01)
        with history._writer.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE away RENAME TO prefect_gpu_contention")
        history.record_contention(ContentionRow("r", "a", 4, 2, "b", 8, 4, 2.0, measured_at=1.0))
        assert pool.said == []
        pool.learning.wake()
        await remembers
        assert [type(event) for event in pool.said] == [ev.ContentionLearned]


async def test_how_programs_communicate_is_told_as_often_as_is_learned() -> None:
    with History("sqlite://") as history:
        spread = {"parts": PARTS, "devices": ("m0", "n0"), "trained_s": 10.0, "steps_done": 10}
        spread |= {"net_mean_bytes_per_s": 4e6}
        history.record(HistoryRow("r", "a", "completed", ended_at=1.0, **spread))  # type: ignore[arg-type]
        pool = Learning(history)
        pool.learning._finished_runs()
        estimator: Any = SimpleNamespace(programs={})
        await pool.learning._learned(estimator)
        assert ev.ContentionLearned(traffic=(("a", Traffic(2e6, 1.0)),)) in pool.said, "half of the link's time"
