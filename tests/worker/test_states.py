"""Whether a claim was clean is told by what the run's history says came before it."""

from __future__ import annotations

from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Pending, Running, Scheduled

from prefect_gpu.worker.states import AWAITING_GPU, GAVE_WAY, claim_was_clean


class Server:
    """Knows one run's history."""

    def __init__(self, *history: State) -> None:
        self.history = list(history)
        self.forced: list[State] = []

    async def read_flow_run_states(self, run_id: object) -> list[State]:
        return self.history

    async def set_flow_run_state(self, run_id: object, state: State, force: bool = False) -> None:
        self.forced.append(state)


WAITS: State = Scheduled(name=AWAITING_GPU, message="the devices are taken")
GIVES_WAY: State = Scheduled(name=AWAITING_GPU, message=f"{GAVE_WAY}an urgent run comes first.")


@pytest.mark.parametrize(
    ("history", "clean"),
    [
        pytest.param((Scheduled(), Pending()), True, id="first start"),
        pytest.param((Scheduled(), WAITS, Pending()), True, id="it had waited"),
        pytest.param((Scheduled(), Pending(), WAITS, Pending()), False, id="shown as waiting over another's claim"),
        pytest.param((Scheduled(), Pending(), Running(), GIVES_WAY, Pending()), True, id="moved"),
        pytest.param((Scheduled(), Pending(), GIVES_WAY, Pending()), True, id="moved before it ran"),
        pytest.param((Scheduled(), Pending(), Running(), GIVES_WAY, WAITS, Pending()), True, id="waited after it"),
    ],
)
async def test_a_claim_is_clean_if_the_run_waited(history: tuple[State, ...], clean: bool) -> None:
    server = Server(*history)
    assert await claim_was_clean(cast(Any, server), uuid4()) is clean
    assert not server.forced


async def test_a_claim_over_a_running_state_is_taken_back() -> None:
    server = Server(Scheduled(), Pending(), Running(name="Training"), Pending())
    assert not await claim_was_clean(cast(Any, server), uuid4())
    assert [state.name for state in server.forced] == ["Training"]
