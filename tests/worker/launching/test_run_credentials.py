"""Credentials of one run alone: the others get theirs whatever becomes of it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prefect_gpu.training.checkpoints.location import S3Location
from prefect_gpu.worker.launching.run_credentials import RunCredentials
from tests.runtime.launches import launched
from tests.worker.prefect_stand_in import LOGGER


@pytest.mark.parametrize("trouble", ["its node is away", "its file cannot be written"])
async def test_a_run_that_cannot_be_given_new_credentials_keeps_no_other_from_them(trouble: str) -> None:
    """On Slurm, what a node is told waits until it is back, which may be never."""
    runs = {name: launched(name) for name in ("first", "second")}
    for run in runs.values():
        run.handle = cast(Any, object())
    given: set[str] = set()

    async def give(run: Any, credentials: str) -> None:
        if run.run_id == "first" and trouble == "its node is away":
            await asyncio.Event().wait()
        if run.run_id == "first":
            raise PermissionError("it is another user's")
        given.add(run.run_id)

    answer = {"Credentials": {"AccessKeyId": "id", "Expiration": datetime.now(timezone.utc)}}
    sts = SimpleNamespace(assume_role=lambda **_: answer)
    credentials = RunCredentials("arn:aws:iam::123456789012:role/runs", 3, S3Location("b", "p"), sts, LOGGER)
    renewing = asyncio.ensure_future(credentials.renew(cast(Any, SimpleNamespace(runs=runs, give_credentials=give))))
    for _ in range(200):
        await asyncio.sleep(0.01)
        if given:
            break
    renewing.cancel()
    assert given == {"second"}
