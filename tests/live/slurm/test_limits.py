"""What a cluster's accounts, and its main memory, allow: whoever waits for them, or ends by them, is told."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.live.pool import eventually
from tests.live.slurm.conftest import SlurmPool


async def said_of(pool: SlurmPool, run_id: UUID, words: str) -> str:
    """Wait until the run's state says this, and give all that it says."""

    async def said() -> str:
        state = (await pool.read(run_id)).state
        message = (state.message or "") if state is not None else ""
        return message if words in message else ""

    return str(await eventually(said, f"{words!r} in what {run_id} is told"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("account", "qos", "reason"), [("lab", "two-gpus", "QOSMaxGRESPerUser"), ("guests", "", "AssocGrpGRES")]
)
async def test_a_run_is_told_which_limit_of_its_account_it_waits_for(
    served_pool: SlurmPool, tmp_path: Path, account: str, qos: str, reason: str
) -> None:
    await served_pool.allow({"account": account, "qos": qos, "maximum": 2})
    served_pool.start_worker()
    first = await served_pool.submit("train", job_variables={"gpus": 2}, hold=str(tmp_path / "go"))
    await served_pool.until(first, "Training")
    second = await served_pool.submit("train", job_variables={"gpus": 2})
    message = await said_of(served_pool, second, reason)
    assert f"an allocation of the shape 'small', waits for {reason}" in message
    (tmp_path / "go").touch()
    for run_id in (first, second):
        assert (await served_pool.until(run_id)).is_completed()
