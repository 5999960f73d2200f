"""Whether a claim was clean is told by what the run's history says came before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Cancelling, Pending, Running, Scheduled

from prefect_gpu.worker.endings.claims import claim_words
from prefect_gpu.worker.server.states import AWAITING_GPU, GAVE_WAY, claim_was_clean, show_phase
from tests.worker.prefect_stand_in import OneRun


class Server:
    """Knows one run's history.

    Attributes:
        now: The state that the run has come to since its history was read; None: the last one of that.
    """

    def __init__(self, *history: State) -> None:
        self.history = list(history)
        self.now: State | None = None
        self.forced: list[State] = []

    async def read_flow_run(self, run_id: object) -> Any:
        return SimpleNamespace(state=self.now or self.history[-1])

    async def read_flow_run_states(self, run_id: object) -> list[State]:
        return self.history

    async def set_flow_run_state(self, run_id: object, state: State, force: bool = False) -> None:
        self.forced.append(state)


WAITS: State = Scheduled(name=AWAITING_GPU, message="the devices are taken")
GIVES_WAY: State = Scheduled(name=AWAITING_GPU, message=f"{GAVE_WAY}an urgent run comes first.")


OURS: State = Pending(message=claim_words("w1", "mine"))
THEIRS: State = Pending(message=claim_words("w2", "theirs"))


@pytest.mark.parametrize(
    ("history", "clean"),
    [
        pytest.param((Scheduled(), Pending()), True, id="first start"),
        pytest.param((Scheduled(), WAITS, Pending()), True, id="it had waited"),
        pytest.param((Scheduled(), Pending(), WAITS, Pending()), False, id="shown as waiting over another's claim"),
        pytest.param((Scheduled(), Pending(), Running(), GIVES_WAY, Pending()), True, id="moved"),
        pytest.param((Scheduled(), Pending(), GIVES_WAY, Pending()), True, id="moved before it ran"),
        pytest.param((Scheduled(), Pending(), Scheduled(), Pending()), True, id="had not begun"),
        pytest.param((Scheduled(), Pending(), Scheduled(), WAITS, Pending()), True, id="waited after that"),
        pytest.param((Scheduled(), Pending(), Running(), GIVES_WAY, WAITS, Pending()), True, id="waited after it"),
        pytest.param((Scheduled(), OURS, WAITS), True, id="another one shows it as waiting over our claim"),
        pytest.param((Scheduled(), OURS, WAITS, OURS), True, id="and has put our claim back"),
        pytest.param((Scheduled(), OURS, WAITS, THEIRS), True, id="and has claimed it after us"),
        pytest.param((Scheduled(), THEIRS, WAITS, OURS), False, id="we have claimed it after them"),
    ],
)
async def test_a_claim_is_clean_if_the_run_waited(history: tuple[State, ...], clean: bool) -> None:
    server = Server(*history)
    assert await claim_was_clean(cast(Any, server), uuid4(), "mine") is clean
    assert not server.forced


@pytest.mark.parametrize("overwritten", [Running(name="Training"), THEIRS], ids=["a run", "a claim"])
async def test_a_claim_over_what_another_worker_has_is_taken_back(overwritten: State) -> None:
    server = Server(Scheduled(), THEIRS, overwritten, OURS)
    assert not await claim_was_clean(cast(Any, server), uuid4(), "mine")
    assert [(state.name, state.message) for state in server.forced] == [(overwritten.name, overwritten.message)]


async def test_a_claim_that_a_user_cancels_as_it_is_taken_back_is_cancelled() -> None:
    server = Server(Scheduled(), THEIRS, Running(), OURS)
    server.now = Cancelling()
    assert not await claim_was_clean(cast(Any, server), uuid4(), "mine")
    assert not server.forced


async def test_a_run_that_tries_again_in_its_process_as_its_phase_is_shown_is_left_to_its_process() -> None:
    """What is shown is written with the policy that was read before, which came over what the retry had noted."""
    prefect = OneRun(Running(), retries=2)

    def fails() -> None:
        prefect.states.append(AwaitingRetry())
        noted = prefect.run.empirical_policy.model_copy(update={"retry_type": "in_process"})
        prefect.run = prefect.run.model_copy(update={"empirical_policy": noted})

    prefect.after_read = fails
    assert not await show_phase(cast(PrefectClient, prefect), prefect.run.id, "Training", still=lambda: False)
    assert prefect.shown == ("scheduled", "AwaitingRetry")
    assert prefect.run.empirical_policy.retry_type == "in_process" and not prefect.run.empirical_policy.resuming
