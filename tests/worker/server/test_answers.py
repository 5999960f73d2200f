"""A gateway that says 200 and means nothing is not taken for Prefect; what we ask for wrongly is not taken for one."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.states import Pending
from pydantic import ValidationError

from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.worker.leadership.lease import PrefectTerms
from prefect_gpu.worker.server.answers import NotPrefectsAnswerError, believe_only_prefect
from prefect_gpu.worker.server.asking import Asking
from tests.worker.launching.test_launcher import a_launcher
from tests.worker.prefect_stand_in import FOLDER, LOGGER, POOL_ID, OneRun

NONSENSE = ({"status": "ok"}, {}, [{"status": "ok"}], "ok", 1, None)


class Gateway:
    """Answers in Prefect's place: the first answers as they are given, and then itself, for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.nonsense: Any = {"status": "ok"}
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        return httpx.Response(200, content=json.dumps(self.answers.pop(0) if self.answers else self.nonsense))


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[PrefectClient]:
    transport = httpx.MockTransport(gateway)
    async with PrefectClient("http://prefect/api", httpx_settings={"transport": transport}) as client:
        client._client.enable_csrf_support = False  # else its token is what is asked for first
        believe_only_prefect(client, LOGGER)
        yield client


ASKED: dict[str, Callable[[PrefectClient], Any]] = {
    "read": lambda client: client.read_flow_run(uuid4()),
    "runs": lambda client: client.read_flow_runs(),
    "pool": lambda client: client.read_work_pool("pool"),
    "queues": lambda client: client.read_work_queues(),
    "states": lambda client: client.read_flow_run_states(uuid4()),
    "set": lambda client: client.set_flow_run_state(uuid4(), Pending()),
    "update": lambda client: client.update_flow_run(uuid4(), name="new"),
    "deployment": lambda client: client.read_deployment(uuid4()),
}


@pytest.mark.parametrize("nonsense", NONSENSE, ids=json.dumps)
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
async def test_what_prefect_would_not_say_is_no_answer(
    ask: Callable[[PrefectClient], Any], nonsense: Any, client: PrefectClient, gateway: Gateway
) -> None:
    gateway.nonsense = nonsense
    with pytest.raises(NotPrefectsAnswerError, match="not as Prefect does"):
        await ask(client)


async def test_what_we_ask_for_wrongly_is_our_mistake(client: PrefectClient, gateway: Gateway) -> None:
    wrong: Any = ["no", "policy"]
    with pytest.raises(ValidationError):
        await client.update_flow_run(uuid4(), empirical_policy=wrong)
    assert gateway.asked == []


async def test_it_is_asked_again_and_said_once(
    client: PrefectClient, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    prefect = OneRun(Pending())
    gateway.answers = [{"status": "ok"}, {"status": "ok"}, prefect.as_read().model_dump(mode="json")]
    with caplog.at_level(logging.WARNING):
        found = await Asking(client, "pool", str(POOL_ID), LOGGER).persist(lambda: client.read_flow_run(prefect.run.id))
    assert found.id == prefect.run.id and len(gateway.asked) == 3
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        f"GET http://prefect/api/flow_runs/{prefect.run.id} was answered with 200"
    ]


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_claim_whose_answer_is_nonsense_is_looked_for(
    arrived: bool, client: PrefectClient, gateway: Gateway
) -> None:
    """It may have arrived. Given up, the run would stay pending for ever; taken for a bug, it would be crashed."""
    prefect = OneRun()
    read = prefect.as_read()
    if not arrived:
        read.state = Pending(message="Claimed by worker another (its-launch)")
    assert read.state is not None and read.state.type is StateType.PENDING
    gateway.answers = [{"status": "ok"}, {"status": "ok"}, read.model_dump(mode="json")]
    launcher = a_launcher(prefect)
    launcher._client = client
    if arrived:
        await launcher._claim(read, prefect.launch())
        assert FOLDER in (read.state.message or "")
    else:
        with pytest.raises(LaunchError):
            await launcher._claim(read, prefect.launch())
    assert len(gateway.asked) == 3


async def test_what_a_gateway_says_of_itself_renews_no_lease(client: PrefectClient) -> None:
    with pytest.raises(ValidationError):
        await PrefectTerms(client, "leader").occupy(1, 1)
