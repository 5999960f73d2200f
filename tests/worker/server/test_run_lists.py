"""All runs are found, also where Prefect's server cannot write one of them down."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Completed, Running, Scheduled

from prefect_gpu.worker.server import run_lists
from prefect_gpu.worker.server.run_lists import RunLists
from prefect_gpu.worker.server.unreadable import UnreadableRun
from tests.worker.prefect_stand_in import LOGGER

LARGE = {"seed": 2**64}
HALF = {"name": "\ud800"}


class Server:
    """Prefect's, with its rules: it answers 500 to a question whose answer has a large integer in it, or half a letter.

    What only asks for ids, or for states, is answered always.
    """

    def __init__(self, runs: list[FlowRun]) -> None:
        self.runs = sorted(runs, key=lambda run: run.id, reverse=True)
        self.broken = False
        self.bad_moments = 0  # questions about one run that are answered with an error
        self.asked = 0
        self._client = self  # httpx's, which is asked for ids

    async def post(self, _: str, json: dict[str, Any]) -> httpx.Response:
        chosen = FlowRunFilter.model_validate(json["flow_runs"])
        types = {run.id: run.state.type.value for run in self._chosen(chosen) if run.state}
        found = [{"id": str(run_id), "state_type": kind, "duration": 0.0} for run_id, kind in types.items()]
        return httpx.Response(200, json=found[json["offset"] :][: json["limit"]])

    def _chosen(self, chosen: FlowRunFilter) -> list[FlowRun]:
        found, ids, state = self.runs, chosen.id, chosen.state
        if ids is not None and ids.any_ is not None:
            found = [run for run in found if run.id in ids.any_]
        if ids is not None and ids.not_any_:
            found = [run for run in found if run.id not in ids.not_any_]
        if state is not None and state.type is not None:
            found = [run for run in found if run.state and run.state.type in (state.type.any_ or ())]
        return found

    async def read_flow_runs(
        self, flow_run_filter: FlowRunFilter, limit: int, offset: int = 0, sort: object = None
    ) -> list[FlowRun]:
        self.asked += 1
        page = self._chosen(flow_run_filter)[offset : offset + limit]
        if self.broken or any(run.parameters for run in page):
            raise error_500()
        return page

    async def read_flow_run(self, run_id: UUID) -> FlowRun:
        for run in self.runs:
            if run.id == run_id:
                self.bad_moments -= 1
                if run.parameters == HALF or self.bad_moments >= 0:
                    raise error_500()
                return run
        raise ObjectNotFound(LookupError(run_id))

    def lists(self) -> RunLists:
        return RunLists(cast(PrefectClient, self), LOGGER)


def error_500() -> PrefectHTTPStatusError:
    request = httpx.Request("POST", "http://prefect/api/flow_runs/filter")
    return PrefectHTTPStatusError("500", request=request, response=httpx.Response(500, request=request))


def run(scheduled: bool, parameters: dict[str, Any]) -> FlowRun:
    return FlowRun(id=uuid4(), flow_id=uuid4(), parameters=parameters, state=Scheduled() if scheduled else Running())


async def ids(lists: RunLists, *types: StateType) -> list[UUID]:
    return [run.id async for page in lists.in_state(FlowRunFilter(), types) for run in page]


@given(
    kinds=st.lists(st.tuples(st.booleans(), st.sampled_from([{}, {}, {}, LARGE])), max_size=30),
    size=st.integers(1, 8),
)
def test_each_run_is_found_once(kinds: list[tuple[bool, dict[str, Any]]], size: int) -> None:
    runs = [run(*kind) for kind in kinds]
    server = Server(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_lists, "_PAGE", size)
        lists = server.lists()
        for _ in range(2):  # what was learned the first time harms nothing the second
            scheduled = asyncio.run(ids(lists, StateType.SCHEDULED))
            assert sorted(scheduled) == sorted(one.id for one in runs if one.state and one.state.is_scheduled())
            every = asyncio.run(ids(lists, StateType.SCHEDULED, StateType.RUNNING))
            assert sorted(every) == sorted(one.id for one in runs)
        named = asyncio.run(lists.by_id([*(one.id for one in runs), uuid4()]))
    assert {one.id for one in named} == {one.id for one in runs}


async def test_what_was_learned_is_forgotten_once_the_run_is_over() -> None:
    large, small = run(True, LARGE), run(True, {})
    server = Server([large, small])
    lists = server.lists()
    assert set(await ids(lists, StateType.SCHEDULED)) == {large.id, small.id}
    large.state = Running()
    assert await ids(lists, StateType.SCHEDULED) == [small.id]
    assert set(await ids(lists, StateType.RUNNING)) == {large.id}
    large.state = Completed()
    assert await ids(lists, StateType.SCHEDULED, StateType.RUNNING) == [small.id]
    server.asked = 0
    assert await ids(lists, StateType.SCHEDULED) == [small.id] and server.asked == 1


async def test_a_run_that_cannot_be_read_is_known_by_its_id_and_its_state_and_hides_no_other() -> None:
    half, small = run(True, HALF), run(True, {})
    lists = Server([half, small]).lists()
    for state in (Scheduled(), Running()):
        half.state = state
        found = {run.id: run async for page in lists.in_state(FlowRunFilter(), StateType) for run in page}
        assert found.keys() == {half.id, small.id} and isinstance(found[half.id], UnreadableRun)
        told = found[half.id].state
        assert told is not None and told.type is state.type
        assert {run.id for run in await lists.by_id(found)} == found.keys()


async def test_a_bad_moment_of_the_server_makes_no_run_unreadable() -> None:
    """What is taken for unreadable would have no retries."""
    whole = run(True, {})
    server = Server([whole])
    server.bad_moments = 2
    assert await server.lists().singly([whole.id]) == [whole]


async def test_a_server_that_answers_nothing_is_not_asked_for_each_run() -> None:
    server = Server([run(True, {}) for _ in range(20)])
    server.broken = True
    with pytest.raises(PrefectHTTPStatusError):
        await ids(server.lists(), StateType.SCHEDULED)
    with pytest.raises(PrefectHTTPStatusError):
        await server.lists().by_id([uuid4()])
    assert server.asked == 4
