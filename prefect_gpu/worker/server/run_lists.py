"""Lists of runs, also where Prefect cannot write one of them down.

Prefect's server writes lists with orjson, which knows no integer beyond 64 bits. One run whose parameters or job
variables have such a number makes it answer 500 to each question whose answer has that run in it, for every pool and
page (PrefectHQ/prefect issue 15031). The run itself is well: it is read by its id, and trains like any other.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, cast
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import get_current_settings

from prefect_gpu.sendable import beyond_64_bits

_PAGE = 200
_SERVER_ERROR = 500


def page_size() -> int:
    """How many things to ask Prefect's API for at once.

    A server whose ``PREFECT_SERVER_API_DEFAULT_LIMIT`` is lower refuses more; its workers must be given the same value.
    """
    return min(_PAGE, get_current_settings().server.api.default_limit)


class RunLists:
    """Asks one Prefect server for lists of runs.

    Args:
        due: Gives runs that are due, by the question that Prefect answers for each run: it writes them otherwise.
        logger: Told of runs that Prefect cannot list.
    """

    def __init__(
        self, client: PrefectClient, due: Callable[[], Awaitable[Iterable[FlowRun]]], logger: logging.Logger
    ) -> None:
        self._client, self._due, self._logger = client, due, logger
        self._apart: set[UUID] = set()  # runs that no list can have, until they are over
        self._said = False

    async def in_state(
        self, chosen: FlowRunFilter, types: Collection[StateType], **where: Any
    ) -> AsyncIterator[list[FlowRun]]:
        """The runs that are chosen and in one of these states, page after page.

        Args:
            chosen: Names no ids.
            where: More filters of Prefect's.

        Raises:
            httpx.HTTPError: Prefect does not answer, or answers no question about runs.
        """
        state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
        chosen = chosen.model_copy(update={"state": state})
        offset, size, left_out = 0, page_size(), 0
        while True:
            page, unknown = await self._page(offset, size, chosen, where)
            yield page
            left_out += unknown
            if len(page) + unknown < size:
                break
            offset += size
        if self._apart or left_out:
            self._say()
            apart = await self._singly(self._apart)
            self._apart &= {run.id for run in apart if run.state is None or not run.state.is_final()}
            yield [run for run in apart if run.state is not None and run.state.type in types]

    async def by_id(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        """The runs of those ids, as they are now; those that do not exist (any more) are left out."""
        ids, size = list(run_ids), page_size()
        found: list[FlowRun] = []
        for start in range(0, len(ids), size):
            some = ids[start : start + size]
            try:
                found += await self._client.read_flow_runs(flow_run_filter=_of(some), limit=size)
            except PrefectHTTPStatusError as error:
                if not await self._is_about_a_run(error):
                    raise
                found += await self._singly(some)
        return found

    async def _page(
        self, offset: int, size: int, chosen: FlowRunFilter, where: dict[str, Any]
    ) -> tuple[list[FlowRun], int]:
        """The runs of one page, and how many more belong there that are not known by name either.

        Those are found by halves. They are not due, and this worker did not see them when they were.
        """
        others = FlowRunFilterId(not_any_=cast(Any, list(self._apart)))
        try:
            page = await self._client.read_flow_runs(
                flow_run_filter=chosen.model_copy(update={"id": others}) if self._apart else chosen,
                # By id, which never changes: a run that leaves the selection meanwhile shifts no other run out of sight
                # for longer than until the next look.
                sort=FlowRunSort.ID_DESC,
                limit=size,
                offset=offset,
                **where,
            )
        except PrefectHTTPStatusError as error:
            if not await self._is_about_a_run(error):
                raise
            if await self._sets_more_apart():
                return await self._page(offset, size, chosen, where)
            if size == 1:
                return [], 1
            half = size // 2
            first, before = await self._page(offset, half, chosen, where)
            second, after = await self._page(offset + half, size - half, chosen, where)
            return first + second, before + after
        return page, 0

    async def _sets_more_apart(self) -> bool:
        found = {run.id for run in await self._due() if _is_unlisted(run)}
        before = len(self._apart)
        self._apart |= found
        return len(self._apart) > before

    async def _singly(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        found = []
        for run_id in list(run_ids):
            with suppress(ObjectNotFound):
                found.append(await self._client.read_flow_run(run_id))
        return found

    async def _is_about_a_run(self, error: PrefectHTTPStatusError) -> bool:
        """Whether the server fails because of what it has to write: it answers the same question about no run at all.

        Raises:
            httpx.HTTPError: It answers that neither.
        """
        if error.response.status_code != _SERVER_ERROR:
            return False
        return not await self._client.read_flow_runs(flow_run_filter=_of([uuid4()]), limit=1)

    def _say(self) -> None:
        if not self._said:
            self._said = True
            self._logger.warning(
                "Prefect cannot list some of the pool's runs, nor anything with them in it: their parameters or job "
                "variables have an integer of more than 64 bits (PrefectHQ/prefect issue 15031). The pool is served as "
                "before. Send such a number as text."
            )


def _is_unlisted(run: FlowRun) -> bool:
    return beyond_64_bits(run.parameters) or beyond_64_bits(run.job_variables)


def _of(run_ids: list[UUID]) -> FlowRunFilter:
    return FlowRunFilter(id=FlowRunFilterId(any_=cast(Any, run_ids)))
