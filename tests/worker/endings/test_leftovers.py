"""What old runs have left goes on the day when nobody needs it any more."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.states import Failed, Running, Scheduled

from prefect_gpu.bundles.leftovers import bundles_left
from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.runtime.leftovers import Cleaner
from prefect_gpu.training.checkpoints import CheckpointStore
from prefect_gpu.worker.endings.leftovers import PoolOwner
from prefect_gpu.worker.server.pool import PoolView
from tests.runtime.stand_ins import until
from tests.worker.prefect_stand_in import LOGGER, POOL_ID, OneRun, asking

DAYS = 0.0  # whatever there is is old


def cleaner(prefect: OneRun, folder: Path, needed: Collection[str] = (), days: float = DAYS) -> Cleaner:
    prefect.run.work_pool_name, ours = "pool", asking(prefect)
    return Cleaner(
        (RunCheckpoints(str(folder), LOGGER).leftovers, partial(bundles_left, folder / "bundles", days)),
        needed=lambda: needed,
        owner=PoolOwner(ours, PoolView(ours.client, "pool", (), LOGGER), "pool"),
        days=days,
        leads=lambda: True,
        logger=LOGGER,
    )


def saved(folder: Path, run_id: str, pool: str = str(POOL_ID)) -> Path:
    """A run's folder with a checkpoint and the best one in it."""
    for place in (folder / run_id, folder / run_id / "best"):
        CheckpointStore(place, pool).save(lambda path: path.write_text("weights"), step=1)
    return folder / run_id


async def test_each_day_is_looked_again(tmp_path: Path) -> None:
    prefect = OneRun(Running())
    folder = saved(tmp_path, prefect.run_id)
    days = asyncio.ensure_future(cleaner(prefect, tmp_path).run(every_s=0.001))
    await asyncio.sleep(0.05)
    assert (folder / "current").exists()
    prefect.states.append(Failed())
    await until(lambda: not folder.exists())
    days.cancel()


@pytest.mark.parametrize("state", [Scheduled(), Running()])
async def test_what_may_be_needed_stays(tmp_path: Path, state: Failed) -> None:
    prefect = OneRun(state)
    folder = saved(tmp_path, prefect.run_id)
    await cleaner(prefect, tmp_path).clean_up()
    assert CheckpointStore(folder).restore() is not None


async def test_what_has_a_record_or_is_young_inside_or_is_another_pools_stays(tmp_path: Path) -> None:
    prefect = OneRun(Failed())
    folder = saved(tmp_path, prefect.run_id)
    await cleaner(prefect, tmp_path, needed=[prefect.run_id]).clean_up()
    for path in (folder, *folder.iterdir()):
        os.utime(path, (0, 0))  # as it looks from outside; the files in it are young
    await cleaner(prefect, tmp_path, days=1).clean_up()
    others = cleaner(prefect, tmp_path)
    prefect.run.work_pool_name = "another"
    await others.clean_up()
    assert CheckpointStore(folder).restore() is not None


@pytest.mark.parametrize("foreign", ["notes", "step-1", "best/notes", "best-of/notes"])
async def test_a_folder_with_something_foreign_in_it_stays_whole(tmp_path: Path, foreign: str) -> None:
    prefect = OneRun(Failed())
    folder = saved(tmp_path, prefect.run_id)
    (folder / foreign).parent.mkdir(exist_ok=True)
    (folder / foreign).write_text("irreplaceable")
    await cleaner(prefect, tmp_path).clean_up()
    assert CheckpointStore(folder).restore() is not None
    RunCheckpoints(str(tmp_path), LOGGER).remove(prefect.run_id)  # as when the run has completed
    left = [path for path in folder.rglob("*") if path.is_file()]
    assert left == [folder / foreign]


async def test_links_are_not_followed(tmp_path: Path) -> None:
    prefect, elsewhere = OneRun(Failed()), tmp_path / "elsewhere"
    saved(elsewhere, prefect.run_id)
    place = tmp_path / "place"
    place.mkdir()
    (place / prefect.run_id).symlink_to(elsewhere / prefect.run_id)
    await cleaner(prefect, place).clean_up()
    RunCheckpoints(str(place), LOGGER).remove(prefect.run_id)
    assert CheckpointStore(elsewhere / prefect.run_id).restore() is not None


async def test_a_place_that_cannot_be_looked_at_keeps_nobody_from_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefect = OneRun(Failed())
    folder = saved(tmp_path, prefect.run_id)
    broken = cleaner(prefect, tmp_path)
    broken._find = (partial(bundles_left, None, DAYS), *broken._find)  # type: ignore[arg-type]
    await broken.clean_up()
    assert not folder.exists()
    assert "What old runs have left is not all known" in caplog.text


async def test_bundles_go_with_the_last_run_that_needs_their_files(tmp_path: Path) -> None:
    prefect, bundles = OneRun(Running()), tmp_path / "bundles"
    shared, foreign, killed = bundles / "files" / "0a.zip", bundles / "README", bundles / "files" / ".partial-x"
    shared.parent.mkdir(parents=True)
    for file in (shared, foreign, killed):
        file.write_text("content")
    mine = [bundles / str(uuid4()) for _ in range(2)]
    for bundle in mine:
        bundle.write_text(json.dumps({"flow_run": {"id": prefect.run_id}, "files_key": "files/0a.zip"}))
    another = bundles / str(uuid4())
    another.write_text("no bundle")
    await cleaner(prefect, tmp_path).clean_up()
    assert shared.exists() and all(bundle.exists() for bundle in mine) and not killed.exists()
    prefect.states.append(Failed())
    await cleaner(prefect, tmp_path).clean_up()
    assert not shared.exists() and not any(bundle.exists() for bundle in mine)
    assert another.exists() and foreign.exists()


def test_files_that_a_run_needs_that_was_submitted_meanwhile_stay(tmp_path: Path) -> None:
    """The cleaner asks Prefect of each run before it removes what that has left, which takes its time."""
    shared = tmp_path / "files" / "0a.zip"
    shared.parent.mkdir()
    shared.write_text("content")

    def submit(run_id: str) -> Path:
        bundle = tmp_path / run_id
        bundle.write_text(json.dumps({"flow_run": {"id": run_id}, "files_key": "files/0a.zip"}))
        return bundle

    old = submit(str(uuid4()))
    (left,) = bundles_left(tmp_path, days=1)
    new = submit(str(uuid4()))
    left.remove()
    assert not old.exists() and new.exists() and shared.exists()
    (left,) = bundles_left(tmp_path, days=1)
    left.remove()
    assert not new.exists() and not shared.exists()


async def test_of_runs_that_prefect_does_not_have_only_those_of_the_same_pool_are_believed_to_be_over(
    tmp_path: Path,
) -> None:
    prefect = OneRun(Failed())
    ours, others, unknown = (saved(tmp_path, str(uuid4()), pool) for pool in (str(POOL_ID), str(uuid4()), ""))
    await cleaner(prefect, tmp_path).clean_up()
    assert not ours.exists() and others.exists() and unknown.exists()
