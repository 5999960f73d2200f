"""What may happen to a sweep's runs, and to Prefect, while it waits. No worker is there: the test is the world."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from pathlib import Path
from typing import Any
from uuid import UUID

import optuna
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Cancelled, Crashed, Failed, Pending, Running, State, Suspended

from benchmarks._host.served import using
from prefect_gpu import gpu, sweep
from prefect_gpu.bundles.storage import local_steps
from prefect_gpu.runtime.tasks import in_own_thread
from prefect_gpu.sweeps import SweepError, artifacts, runs, search
from prefect_gpu.training.trial import AT_A_RUNG
from tests.live.pool import LivePool, eventually
from tests.live.proxy import Proxy


@flow(name="never")
def never(x: float) -> float:
    """Nobody runs it."""
    return x


@flow(name="tried-again", retries=1)
def tried_again(x: float) -> float:
    """Nobody runs it, either."""
    return x


class World:
    """Some runs, whose states the test sets, and a watch whose time it sets, too."""

    def __init__(self, pool: LivePool) -> None:
        self.pool = pool
        self.now = 0.0
        self.said: list[UUID] = []
        self.watch = runs.Watch(self.said.append, clock=lambda: self.now)

    async def begin(self, train: object) -> UUID:
        future = await asyncio.to_thread(gpu(work_pool=self.pool.name)(train).submit, x=1.0)  # type: ignore[arg-type]
        await self.set(future.flow_run_id, Running())
        return future.flow_run_id

    async def set(self, run_id: UUID, state: State) -> None:
        async with get_client() as client:
            await client.set_flow_run_state(run_id, state, force=True)

    async def over(self, *ids: UUID) -> dict[UUID, object]:
        return dict(await asyncio.to_thread(self.watch.over, ids))


async def test_a_crash_is_the_end_once_no_worker_brings_the_run_back(pool: LivePool) -> None:
    world = World(pool)
    with using(pool.sandbox):
        once, twice = await world.begin(never), await world.begin(tried_again)
        for run_id in (once, twice):
            await world.set(run_id, Crashed())
        assert (await world.over(once, twice)).keys() == {once}, "the other one has a retry left"
        await world.set(twice, AwaitingRetry())
        world.now += 100.0
        assert await world.over(twice) == {}
        await world.set(twice, Crashed())
        assert await world.over(twice) == {}, "as if it had not crashed before"
        world.now += 31.0
        assert (await world.over(twice)).keys() == {twice}


async def test_whom_a_user_suspends_has_not_stopped_at_a_rung(pool: LivePool) -> None:
    world = World(pool)
    with using(pool.sandbox):
        by_hand, at_a_rung = await world.begin(never), await world.begin(never)
        await world.set(by_hand, Suspended(message="Look at the data first"))
        await world.set(at_a_rung, Suspended(message=f"{AT_A_RUNG} after step 1, where other trials were better."))
        for _ in range(2):
            assert (await world.over(by_hand, at_a_rung)).keys() == {at_a_rung}
        assert world.watch.suspended == {by_hand} and world.said == [by_hand]
        await world.set(by_hand, Running())
        assert await world.over(by_hand) == {} and world.watch.suspended == set()


async def test_a_run_is_taken_for_deleted_once_it_was_missed_twice(pool: LivePool) -> None:
    world = World(pool)
    with using(pool.sandbox):
        kept, deleted = await world.begin(never), await world.begin(never)
        async with get_client() as client:
            await client.delete_flow_run(deleted)
        found = []
        for _ in range(4):
            found.append(await world.over(kept, deleted))
            world.now += 31.0
        assert found == [{}, {}, {deleted: None}, {deleted: None}]


async def test_a_run_is_found_whose_sweep_was_killed_as_it_started_it(pool: LivePool) -> None:
    """One was handed to the pool; of others, the flow was not there yet: nobody would ever run them."""
    train = gpu(work_pool=pool.name)(never)
    with using(pool.sandbox):
        assert await asyncio.to_thread(runs.begun, "trial-1") is None
        started = await asyncio.to_thread(runs.start, train, {"x": 1.0}, None, "trial-1")
        async with get_client() as client:
            left = await client.create_flow_run(never, parameters={"x": 1.0}, tags=["trial-2"], state=Pending())
            interrupted: State = Failed(message="Flow run submission failed: Error calling function: KeyboardInterrupt")
            await client.create_flow_run(never, parameters={"x": 1.0}, tags=["trial-3"], state=interrupted)
            for _ in range(2):
                assert await asyncio.to_thread(runs.begun, "trial-1") == started
                assert await asyncio.to_thread(runs.begun, "trial-2") is None
                assert await asyncio.to_thread(runs.begun, "trial-3") is None
            state = (await client.read_flow_run(left.id)).state
        assert state is not None and state.is_cancelled() and state.message == "Its submission was cut off."


async def test_a_flow_that_cannot_be_sent_just_now_is_sent_again(
    pool: LivePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder that the pool keeps flows in is no folder for a while, after one trial was started."""
    bundles = tmp_path / "bundles"
    train = gpu(work_pool=pool.name)(never)
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="never")
    monkeypatch.setattr(search, "_SEND_AGAIN_S", 0.0)
    upload, execution = local_steps(bundles)
    with using(pool.sandbox):
        async with get_client() as client:
            kept = (await client.read_work_pool(pool.name)).storage_configuration
            steps = {"bundle_upload_step": upload, "bundle_execution_step": execution}
            changed = kept.model_copy(update=steps)
            await client.update_work_pool(pool.name, WorkPoolUpdate(storage_configuration=changed))

        started_runs: list[UUID] = []
        start_run = runs.start

        def start(*arguments: Any) -> UUID:
            started_runs.append(start_run(*arguments))
            if len(started_runs) == 1:
                bundles.rename(tmp_path / "away")
                bundles.touch()
            return started_runs[-1]

        monkeypatch.setattr(runs, "start", start)
        there = contextvars.copy_context()
        work = functools.partial(there.run, sweep, train, {"x": [1.0]}, trials=2, storage=storage)
        searching = asyncio.create_task(in_own_thread(work, "sweep"))

        async def waits() -> bool:
            return any("keeps flows is out of reach" in text for text in caplog.messages)

        await eventually(waits, "it waits", 60.0)
        bundles.unlink()
        (tmp_path / "away").rename(bundles)

        async def started() -> bool:
            return sum("flow_run" in trial.user_attrs for trial in study.trials) == 2

        await eventually(started, "both have a run", 60.0)
        async with get_client() as client:
            for trial in study.trials:
                await client.set_flow_run_state(UUID(trial.user_attrs["flow_run"]), Cancelled(), force=True)
        with pytest.raises(SweepError, match="All 2 trials failed"):
            await searching


async def test_a_sweep_waits_for_prefect_and_names_what_became_of_its_trials(
    pool: LivePool, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Prefect fails when a run is to be started, and when runs are looked at. One run is deleted, one cancelled."""
    monkeypatch.setattr(runs, "_COUNT_S", 0.0)
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="never")
    refused = await proxy.fail(500, r"POST /api/(deployments|flow_runs/) ", times=2)
    train = gpu(work_pool=pool.name)(never)
    with using(pool.sandbox), temporary_settings({PREFECT_API_URL: proxy.api_url}):
        there = contextvars.copy_context()  # in a thread that no failed test waits for
        work = functools.partial(there.run, sweep, train, {"x": [1.0]}, trials=2, storage=storage)
        searching = asyncio.create_task(in_own_thread(work, "sweep"))

        async def started() -> bool:
            return sum("flow_run" in trial.user_attrs for trial in study.trials) == 2

        await eventually(started, "both have a run", 60.0)
        assert refused.met == 2 and len(study.trials) == 2
        first, second = (UUID(trial.user_attrs["flow_run"]) for trial in study.trials)
        away = await proxy.fail(500, r"POST /api/flow_runs/filter ", times=3)

        async def heard() -> bool:
            return away.met == 3

        await eventually(heard, "it has asked three times", 60.0)
        async with get_client() as client:
            await client.delete_flow_run(first)
            await client.set_flow_run_state(second, Cancelled(message="by hand"), force=True)
        with pytest.raises(SweepError, match="All 2 trials failed"):
            await searching
    errors = [trial.user_attrs["error"] for trial in study.trials]
    assert errors[0] == "its flow run was deleted" and "by hand" in errors[1]
    assert sum("Prefect is out of reach" in text for text in caplog.messages) >= 2


async def test_a_picture_that_cannot_be_made_does_not_cost_the_result(
    pool: LivePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(artifacts, "create_table_artifact", full)
    study = optuna.create_study()
    study.add_trial(optuna.trial.create_trial(value=1.0))

    @flow
    def a_search() -> None:
        artifacts.show(study, "loss")

    with using(pool.sandbox):
        await asyncio.to_thread(a_search)
    assert any("could not be made" in text for text in caplog.messages)
