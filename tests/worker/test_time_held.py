"""Prefect keeps for how long a run with a time limit has held its devices, while it waits."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prefect.states import Scheduled

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.worker.time_held import HELD_S, held_before, keep_time_held
from tests.runtime.launches import launched
from tests.worker.prefect_stand_in import OneRun, asking


class Labelled(OneRun):
    """With labels, as the server keeps them."""

    async def update_flow_run_labels(self, _: object, labels: dict[str, Any]) -> None:
        """See Prefect's client."""
        self.run = self.run.model_copy(update={"labels": {**(self.run.labels or {}), **labels}})


@pytest.mark.parametrize("limit_s", [None, 100.0])
async def test_what_a_run_has_held_so_far_is_kept_with_it_and_forgotten_at_its_end(limit_s: float | None) -> None:
    prefect = Labelled(Scheduled())
    run = launched(prefect.run_id, request=Request(time_limit_s=limit_s), times={"granted": CLOCK() - 30.0})
    run.record.known["held_s"] = 12.0
    await keep_time_held(asking(prefect), run)
    held_s = held_before(prefect.as_read())
    assert held_s == 0.0 if limit_s is None else held_s >= 42.0
    await keep_time_held(asking(prefect), run, ends=True)
    assert held_before(prefect.as_read()) == 0.0


@pytest.mark.parametrize("label", ["much", True, None, -5])
def test_a_label_that_somebody_else_has_written_is_no_time(label: object) -> None:
    prefect = OneRun(Scheduled())
    prefect.run.labels = cast(Any, {HELD_S: label})
    assert held_before(prefect.as_read()) == 0.0
