"""What a run's state is called, while the run ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.states import Completed, Running

from prefect_gpu.training import protocol
from prefect_gpu.worker.display import RunDisplay
from prefect_gpu.worker.lane import Lane
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
