"""What a worker asks of Prefect; tests/live/test_outages.py and test_absence.py see it with a server."""

from __future__ import annotations

import asyncio

from prefect.states import Scheduled

from tests.worker.prefect_stand_in import OneRun, asking


async def test_labels_that_are_written_at_once_are_all_kept() -> None:
    prefect = OneRun(Scheduled())
    told = asking(prefect)
    await asyncio.gather(*(told.label(prefect.run_id, {f"label-{number}": number}) for number in range(4)))
    assert prefect.as_read().labels == {f"label-{number}": number for number in range(4)}
