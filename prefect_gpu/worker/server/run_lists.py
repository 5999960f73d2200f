"""Lists of runs, also where Prefect cannot write one of them down.

Prefect's server takes in runs that it cannot write into a list, and then answers 500 to each question whose answer has
one of them in it, for every pool and page (PrefectHQ/prefect issue 15031). An integer beyond 64 bits, wherever in a
run, does that; such a run is read by its id, and trains like any other. Those that cannot be read by their ids either
are in :mod:`.unreadable`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

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

from prefect_gpu.worker.server.unreadable import in_short, is_about_a_run, of, read_run

_PAGE = 200
_SERVER_ERROR = 500
_TRIES = 3  # of a list: more such runs may have come since the first


def page_size() -> int:
    """How many things to ask Prefect's API for at once.

    A server whose ``PREFECT_SERVER_API_DEFAULT_LIMIT`` is lower refuses more; its workers must be given the same value.
    """
    return min(_PAGE, get_current_settings().server.api.default_limit)


class RunLists:
    """Asks one Prefect server for lists of runs.

    Args:
        logger: Told of runs that Prefect cannot list.
    """

    def __init__(self, client: PrefectClient, logger: logging.Logger) -> None:
        self._client, self._logger = client, logger
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
        offset, size = 0, page_size()
        while True:
            page = await self._page(offset, size, chosen, where)
            yield page
            if len(page) < size:
                break
            offset += size
        if self._apart:
            apart = await self.singly(self._apart)
            over = {run.id for run in apart if run.state is not None and run.state.is_final()}
            self._apart &= {run.id for run in apart} - over
            yield [run for run in apart if run.state is not None and run.state.type in types]

    async def by_id(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        """The runs of those ids, as they are now.

        Those that do not exist (any more) are left out.
        """
        ids, size = list(run_ids), page_size()
        if not ids:
            return []
        if len(ids) <= size:
            try:
                return await self._client.read_flow_runs(flow_run_filter=of(ids), limit=size)
            except PrefectHTTPStatusError as error:
                if not await is_about_a_run(self._client, error):
                    raise
                if len(ids) == 1:
                    return await self.singly(ids)
        half = min(size, len(ids) // 2)
        return await self.by_id(ids[:half]) + await self.by_id(ids[half:])

    async def singly(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        """:meth:`by_id`, with a question for each. It is the quicker way for a few."""
        found = await asyncio.gather(*map(self._one, list(run_ids)))
        return [run for run in found if run is not None]

    async def _page(
        self, offset: int, size: int, chosen: FlowRunFilter, where: dict[str, Any], again: int = _TRIES
    ) -> list[FlowRun]:
        others = FlowRunFilterId(not_any_=cast(Any, list(self._apart)))
        try:
            return await self._client.read_flow_runs(
                flow_run_filter=chosen.model_copy(update={"id": others}) if self._apart else chosen,
                # By id, which never changes: a run that leaves the selection meanwhile shifts no other run out of sight
                # for longer than until the next look.
                sort=FlowRunSort.ID_DESC,
                limit=size,
                offset=offset,
                **where,
            )
        except PrefectHTTPStatusError as error:
            if not again or not await is_about_a_run(self._client, error):
                raise
            self._say()
            self._apart |= await self._unlisted(await self._ids(chosen, where), where)
        return await self._page(offset, size, chosen, where, again - 1)

    async def _ids(self, chosen: FlowRunFilter, where: dict[str, Any]) -> list[UUID]:
        """Of the runs that are chosen, and of those in the pool's other queues."""
        told = await in_short(self._client, {"flow_runs": chosen, "work_pools": where.get("work_pool_filter")})
        return [UUID(run["id"]) for run in told]

    async def _unlisted(self, ids: list[UUID], where: dict[str, Any]) -> set[UUID]:
        """Those of the runs that no list can have, found by halves."""
        size = page_size()
        if len(ids) <= size:
            try:
                await self._client.read_flow_runs(flow_run_filter=of(ids), limit=size, **where)
            except PrefectHTTPStatusError as error:
                if error.response.status_code != _SERVER_ERROR:
                    raise
                if len(ids) == 1:
                    return set(ids)
            else:
                return set()
        half = len(ids) // 2
        return await self._unlisted(ids[:half], where) | await self._unlisted(ids[half:], where)

    async def _one(self, run_id: UUID) -> FlowRun | None:
        with suppress(ObjectNotFound):
            return await read_run(self._client, run_id)
        return None

    def _say(self) -> None:
        if not self._said:
            self._said = True
            self._logger.warning(
                "Prefect cannot list some of the pool's runs, nor anything with them in it: they have an integer of "
                "more than 64 bits, text that is no Unicode, or a label that is no finite number (PrefectHQ/prefect "
                "issue 15031). The pool is served as before. Send such a number as text."
            )
