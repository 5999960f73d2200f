"""A gang of which one node is out of reach as a new worker looks for it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import LaunchError, RunHandle
from prefect_gpu.runtime.drivers.slurm.handle import lost
from prefect_gpu.runtime.drivers.slurm.place import take
from prefect_gpu.runtime.drivers.slurm.runs import Runs
from prefect_gpu.runtime.launch.gang import adopt_together
from tests.runtime.stand_ins import until

LOGGER = logging.getLogger("tests.slurm.adopting")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What nobody holds is not looked for: in a large worker it may be an hour until it is."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_its_output_is_repeated_once_however_often_it_is_looked_for(tmp_path: Path) -> None:
    echoed: list[str] = []

    async def asked(agent: str, what: str, **data: Any) -> dict[str, Any]:
        return {"pid": 1, "warm": False}

    runs = Runs(
        SimpleNamespace(ask=asked),  # type: ignore[arg-type]
        lent=lambda name: SimpleNamespace(agent="pool.0", adjustable=False, node=SimpleNamespace(id=name)),  # type: ignore[arg-type, return-value]
        connecting=lambda _: (),
        is_lent=lambda _: True,
        loss_of=lambda *_: asyncio.sleep(0, lost("")),
        echo=lambda label, line: echoed.append(line),
        comes_back_s=0.0,
        logger=LOGGER,
    )
    folder, other = tmp_path / "first", tmp_path / "second"
    for one in (folder, other):
        one.mkdir()
        take(one, "n1.7")
    (folder / supervisor.OUTPUT).write_text("heard before\n")
    away = True

    async def adopt(run_id: str, run_dir: Path) -> RunHandle | None:
        if run_dir == other and away:
            raise LaunchError("The agent of node n2.7 is not connected")
        return await runs.adopt(run_id, run_dir)

    driver: Any = SimpleNamespace(adopt=adopt)
    for _ in range(3):
        with pytest.raises(LaunchError):
            await adopt_together(driver, [("run", folder), ("run.1", other)], LOGGER)
    away = False
    gang = await adopt_together(driver, [("run", folder), ("run.1", other)], LOGGER)
    assert gang is not None
    with (folder / supervisor.OUTPUT).open("a") as output:
        output.write("step 1\n")
    await until(lambda: echoed)
    await asyncio.sleep(1.0)  # as long as each of them may take to look
    assert echoed == ["step 1"]
    runs.lose({"pool.0"}, lambda _: lost("Its allocation has ended."))
    assert (await gang.wait()).lost
