"""What a run's state is called while the run ends, and when its page is made."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed, Running

from prefect_gpu.estimation.runs import RunEstimate
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.launch import WAITING
from prefect_gpu.training import protocol
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.telling.display import RunDisplay
from tests.runtime.stand_ins import until
from tests.worker.prefect_stand_in import LOGGER, OneRun


class Ending(OneRun):
    """A run that ends while its renaming is on its way."""

    def __init__(self, *states: State) -> None:
        super().__init__(*states)
        self.launched = self.launch()
        self.launched.phase = protocol.SAVING
        self.changes: list[dict[str, Any]] = []

    async def update_flow_run(self, run_id: UUID, **changes: Any) -> None:
        """See Prefect's client."""
        await super().update_flow_run(run_id, **changes)
        self.changes.append(changes)
        if len(self.changes) == 1:
            self.launched.phase = protocol.FINISHED  # which a run says first
            self.states.append(Completed())


async def test_a_run_that_ends_while_it_is_renamed_completes_once() -> None:
    prefect = Ending(Running())
    estimates: Any = SimpleNamespace(drift=lambda run_id: None)
    display = RunDisplay(cast(Any, prefect), prefect.launched, estimates, print, Lane(), LOGGER)
    display.wake()
    await until(lambda: len(prefect.changes) == 2)
    await display.leave()
    assert [state.name for state in prefect.states] == ["Pending", "Running", "Completed"]
    assert prefect.run.empirical_policy.resuming is False, "it would count as resumed the next time"


@pytest.mark.parametrize(("from_runs", "warned"), [(0, 0), (12, 1)])
async def test_steps_are_compared_with_those_of_the_same_program_only(from_runs: int, warned: int) -> None:
    prefect, warnings = OneRun(Running()), list[str]()
    rests_on = RunEstimate({}, from_runs, "finished runs")
    estimates: Any = SimpleNamespace(drift=lambda run_id: 0.001, of=lambda run_id: rests_on)
    display = RunDisplay(cast(Any, prefect), prefect.launch(), estimates, warnings.append, Lane(), LOGGER)
    display._say_drift()
    display._say_drift()
    assert len(warnings) == warned


class Page:
    """Stands where a run's artifacts are written.

    Attributes:
        finals: Of each time that it was written, whether that was the last one.
    """

    def __init__(self) -> None:
        self.finals: list[bool] = []

    async def show(self, *, final: bool = False, measured: Mapping[str, float] | None = None) -> float:
        """See :class:`~prefect_gpu.worker.telling.artifacts.RunArtifacts`."""
        self.finals.append(final)
        return 0.0


@pytest.mark.parametrize(
    ("since", "ago_s", "finals"),
    [
        (protocol.TRAINING, 0.0, [True]),
        (protocol.TRAINING, 10.0, [False, True]),
        (WAITING, 10.0, [True]),
        (WAITING, 60.0, [False, True]),
    ],
    ids=["over in seconds", "trains", "waits a moment", "waits long"],
)
async def test_a_run_that_is_over_in_seconds_has_its_page_written_once(
    since: str, ago_s: float, finals: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, prefect = Page(), OneRun(Running())
    monkeypatch.setattr("prefect_gpu.worker.telling.display._SETTLED_AFTER_S", 0.05)
    monkeypatch.setattr("prefect_gpu.worker.telling.display.RunArtifacts", lambda *about, **more: page)
    run = prefect.launch()
    run.phase = protocol.PREPARING if since == WAITING else since
    run.record.times |= {"launched": CLOCK() - 100.0, since: CLOCK() - ago_s}
    estimates: Any = SimpleNamespace(drift=lambda run_id: None)
    display = RunDisplay(cast(Any, prefect), run, estimates, print, Lane(), LOGGER)
    display.wake()
    await until(lambda: prefect.shown[1] == ("Prepared" if since == WAITING else "Training"))
    await until(lambda: len(page.finals) == len(finals) - 1)
    await display.close(ExitReport(0), [])
    assert page.finals == finals
