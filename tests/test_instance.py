"""The first instance of a gang ends with its process where it fails, so that the pool starts all of them anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import prefect.flow_engine
import pytest
from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy

from prefect_gpu import instance


class Ended(BaseException):
    """The process is gone."""


@flow
def plain() -> None:
    raise RuntimeError("own fault")


@flow
async def awaited() -> None:
    raise RuntimeError("own fault")


@flow
def generator() -> Iterator[int]:
    yield 1
    raise RuntimeError("own fault")


@flow
async def async_generator() -> AsyncIterator[int]:
    yield 1
    raise RuntimeError("own fault")


async def _consume(values: AsyncIterator[int]) -> None:
    async for _ in values:
        pass


def _call(kind: Flow[..., Any]) -> None:
    """Carry out a flow's function, as Prefect's engine does by what the flow says of it."""
    result = kind.fn()
    if kind.isgenerator and kind.isasync:
        asyncio.run(_consume(result))
    elif kind.isasync:
        asyncio.run(result)
    else:
        list(result)


@pytest.mark.parametrize("kind", [plain, awaited, generator, async_generator], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("tries", "retries", "raised"), [(1, 1, Ended), (2, 1, RuntimeError), (1, None, RuntimeError)])
def test_it_ends_if_a_retry_is_left_and_else_fails_as_any_flow(
    kind: Flow[..., Any],
    tries: int,
    retries: int | None,
    raised: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end() -> None:
        raise Ended

    run = FlowRun(flow_id=uuid4(), run_count=tries, empirical_policy=FlowRunPolicy(retries=retries))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))
    monkeypatch.setattr(prefect.flow_engine, "load_flow_run", lambda _: run)
    monkeypatch.setattr(instance, "_end", end)
    with pytest.raises(raised):
        _call(instance.not_tried_here(kind))


def test_without_an_answer_of_prefects_its_engine_sees_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> FlowRun:
        raise ConnectionError

    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid4()))
    monkeypatch.setattr(prefect.flow_engine, "load_flow_run", away)
    with pytest.raises(RuntimeError, match="own fault"):
        _call(instance.not_tried_here(plain))
