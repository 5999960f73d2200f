"""Runs that want a kind of device, on a real server with real processes. The devices are virtual: no GPU is tested."""

from __future__ import annotations

from pathlib import Path

from tests.live.pool import LivePool

MIXED = "1xA100-2GiB,2xT4-1GiB"


async def test_runs_get_the_kind_that_they_want(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(virtual_devices=MIXED, learn="false")
    wanted = {
        "T4": {"gpu_kind": ["T4"], "owner": "ann"},
        "A100": {"gpu_kind": ["H100", "A100"], "owner": "bob"},
        "newer": {"compute_capability": ">=8.0"},
        "other": {"exclude_gpu_kind": ["a100"], "gpus": 2},
    }
    runs = {name: await pool.submit("train", job_variables=asked) for name, asked in wanted.items()}
    wrong = await pool.submit("train", job_variables={"gpu_kind": "A10O"})
    refused = await pool.until(wrong)
    assert refused.is_crashed() and "gpu_kind='A10O'" in str(refused.message)
    assert "1 x virtual A100, 2 x virtual T4" in str(refused.message) and "did you mean 'A100'?" in str(refused.message)
    for run in runs.values():
        assert (await pool.until(run)).is_completed()
    rows = dict(zip(runs, await pool.rows(list(runs.values())), strict=True))
    assert {name: row.device_kind for name, row in rows.items()} == {
        "T4": "virtual T4", "A100": "virtual A100", "newer": "virtual A100", "other": "virtual T4",
    }  # fmt: skip
    assert len(rows["other"].devices) == 2
