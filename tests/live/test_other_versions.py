"""A worker is upgraded, or rolled back, while a run trains, with the code of an earlier commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._host.former import FORMER, former_version
from prefect_gpu.runtime.drivers.launched import environment
from tests.components import require_commit
from tests.live.pool import COLD, LivePool


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as it was."""
    require_commit(FORMER)
    folder = former_version(FORMER, tmp_path_factory.mktemp("before"))
    assert folder is not None
    return folder


@pytest.mark.full
@pytest.mark.parametrize("way", ["upgrade", "rollback"])
async def test_a_run_outlives_an_upgrade_and_a_rollback_and_is_heard(pool: LivePool, before: Path, way: str) -> None:
    old, new = {"PYTHONPATH": str(before)}, dict[str, str]()
    first, second = (old, new) if way == "upgrade" else (new, old)
    settings = {"virtual_devices": "1", "learn": "false", **COLD}
    worker = pool.start_worker(others=first, **settings)
    go = pool.folder / "go"
    run = await pool.submit(hold=str(go))
    await pool.until(run, "Training")
    pid = await pool.place(run)
    variables = environment(int(pid.rpartition(":")[2]))
    assert (f"PYTHONPATH={before}".encode() in variables) == (way == "upgrade"), "it is of its worker's version"
    worker.kill()

    successor = pool.start_worker(others=second, **settings)
    successor.wait_for_output("adopted it")
    after = await pool.submit()
    go.touch()
    await pool.until(run, "Completed")
    await pool.until(after, "Completed")
    assert pool.notes.read_text().split() == [
        *("executed", str(run), "finished", str(run)),
        *("executed", str(after), "finished", str(after)),
    ]
    [row, _] = await pool.rows([run, after])
    assert (row.outcome, row.steps_done) == ("completed", 3), "the controller has heard its reports"
