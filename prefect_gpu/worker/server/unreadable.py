"""A run that Prefect's server has, and cannot write into any answer.

It takes in text that is no Unicode (half of a surrogate pair) and labels that are no finite numbers, and answers 500 to
each question whose answer has them in it. What it says to its own pages of a run's progress has neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectHTTPStatusError
from pydantic import BaseModel

UNREADABLE = (
    "Prefect's server cannot read this run back: its parameters, job variables or labels have text that is no Unicode, "
    "or a label is no finite number. Submit it again without."
)
_SERVER_ERROR = 500
_AGAIN_S = (
    0.2,
    0.4,
    0.0,
)  # the server may have had a bad moment, and what is not read is taken for a run without retries
_MOST = 1000  # runs in one answer: more are refused
_SOMEWHERE = "unknown"


class UnreadableRun(FlowRun):
    """What is known of such a run: its id, and the type of its state. Its policy is not, so it is tried once.

    Its ``infrastructure_pid`` is ``unknown`` if it has begun: its process may be anywhere.
    """


async def read_run(client: PrefectClient, run_id: UUID) -> FlowRun:
    """A run as it is now, as far as it can be read.

    Raises:
        ObjectNotFound: It does not exist (any more).
        httpx.HTTPError: Prefect does not answer.
    """
    for pause_s in _AGAIN_S:
        try:
            return await client.read_flow_run(run_id)
        except PrefectHTTPStatusError as error:
            if not await is_about_a_run(client, error):
                raise
            told = await in_short(client, {"flow_runs": of([run_id])})
            if not told:
                raise
        await asyncio.sleep(pause_s)
    kind = StateType(told[0]["state_type"])
    return UnreadableRun(
        id=run_id,
        name=str(run_id),
        flow_id=run_id,  # there is none of that id
        state=State(id=uuid5(run_id, kind.value), type=kind),  # the same for as long as its type is
        infrastructure_pid=_SOMEWHERE if told[0]["duration"] or kind is StateType.RUNNING else None,
    )


async def in_short(client: PrefectClient, filters: Mapping[str, BaseModel | None]) -> list[dict[str, Any]]:
    """The id, the type of the state and the duration of each run that is chosen: this question is always answered.

    Args:
        filters: By their names in Prefect's API. There is none of work queues.
    """
    chosen = {name: one.model_dump(mode="json") for name, one in filters.items() if one is not None}
    found: list[dict[str, Any]] = []
    while True:
        body = {**chosen, "sort": FlowRunSort.ID_DESC.value, "limit": _MOST, "offset": len(found)}
        page = (await client._client.post("/ui/flow_runs/history", json=body)).json()
        found += page
        if len(page) < _MOST:
            return found


async def is_about_a_run(client: PrefectClient, error: PrefectHTTPStatusError) -> bool:
    """Whether the server fails because of what it has to write: it answers the same question about no run at all.

    Raises:
        httpx.HTTPError: It answers that neither.
    """
    if error.response.status_code != _SERVER_ERROR:
        return False
    return not await client.read_flow_runs(flow_run_filter=of([uuid4()]), limit=1)


def of(run_ids: list[UUID]) -> FlowRunFilter:
    """The runs of those ids."""
    return FlowRunFilter(id=FlowRunFilterId(any_=cast(Any, run_ids)))
