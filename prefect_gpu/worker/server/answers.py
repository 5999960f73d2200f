"""What answers in Prefect's place is no answer of Prefect's, although it says 200.

A gateway may answer each request with ``{"status": "ok"}``, or with a page to log in. Prefect's client then fails as it
reads the answer, with a ``ValidationError`` for example, which looks as if what it was given were wrong.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import httpx
from prefect.client.orchestration import PrefectClient

_MISREAD = (ValueError, LookupError, TypeError, AttributeError)  # a ValidationError and a JSONDecodeError are values'
_answers: ContextVar[list[httpx.Response] | None] = ContextVar("prefect_gpu_answers", default=None)


class NotPrefectsAnswerError(httpx.DecodingError):
    """An answer that cannot be Prefect's. It says nothing: what was asked for may have happened, or not."""


def believe_only_prefect(client: PrefectClient, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
    """Let all that this client is asked for raise :class:`NotPrefectsAnswerError` where the answer has a wrong shape.

    What it raises before there is an answer is about what it was given, and stays as it is.
    """
    said: set[str] = set()  # what was not understood, and has not been since
    for name, _ in inspect.getmembers(PrefectClient, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            setattr(client, name, _understood(getattr(client, name), said, logger))
    client._client.event_hooks["response"].append(_look)


async def _look(response: httpx.Response) -> None:
    """Of each answer, before the client reads it."""
    if response.request.method == "PATCH" and response.status_code == httpx.codes.OK and await response.aread():
        raise _error(response, "it says nothing to a PATCH")
    answers = _answers.get()
    if answers is not None:
        answers.append(response)


def _understood(
    ask: Callable[..., Awaitable[Any]], said: set[str], logger: logging.Logger | logging.LoggerAdapter[Any]
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(ask)
    async def asked(*args: Any, **kwargs: Any) -> Any:
        if _answers.get() is not None:  # the client asks itself
            return await ask(*args, **kwargs)
        answers: list[httpx.Response] = []
        before = _answers.set(answers)
        try:
            found = await ask(*args, **kwargs)
        except _MISREAD as error:
            if not answers:
                raise
            _say(logger, said, ask.__name__, misread := _error(answers[-1], str(error)))
            raise misread from error
        except NotPrefectsAnswerError as error:
            _say(logger, said, ask.__name__, error)
            raise
        finally:
            _answers.reset(before)
        said.discard(ask.__name__)
        return found

    return asked


def _error(response: httpx.Response, why: str) -> NotPrefectsAnswerError:
    request = response.request
    words = f"{request.method} {request.url} was answered with {response.status_code}, but not as Prefect does: "
    return NotPrefectsAnswerError(words + why.partition("\n")[0], request=request)


def _say(
    logger: logging.Logger | logging.LoggerAdapter[Any], said: set[str], what: str, error: NotPrefectsAnswerError
) -> None:
    """Once until it is answered again."""
    logger.log(logging.DEBUG if what in said else logging.WARNING, "%s. It is asked again.", error)
    said.add(what)
