"""How Prefect is asked: by one client, and soon again where its database is locked.

Prefect's server on SQLite has its database locked for a moment now and then. It answers 503 at once to a request that
reads before it writes, if another one has written in between. To make a flow run is such a request. Prefect's client
asks again after two seconds and then four. Meanwhile a user waits for an answer, or a device for its run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
from prefect.client.orchestration import PrefectClient, SyncPrefectClient
from prefect.context import SyncClientContext

from prefect_gpu.server_needed import server_needed

AGAIN_S = (0.05, 0.2, 0.4, 0.8, 1.6, 12.0)
"""After so many seconds it is asked again, time after time, where Prefect's client would take 2, 4, 8 and so on."""
LABELS_AGAIN_S = (0.02, 0.05, 0.1, 0.25, 0.5)
"""The same for labels. The server reads them before it writes them, and others often write in between where runs start.

A user is told of a promise once its label is there. A caller that needs the label asks on (:meth:`.Asking.persist`).
"""

_AGAIN_AFTER = "Retry-After"  # which Prefect's client heeds
_REFUSED = "prefect_gpu.locked"
_OF_PREFECT = {"exception_message": "Service Unavailable"}  # a gateway says something else, and is given time


def ask_again_soon(client: PrefectClient | SyncPrefectClient) -> None:
    """Let this client's requests wait for a locked database not much longer than it is locked."""
    hooks = client._client.event_hooks["response"]
    hook = _say_when if isinstance(client, SyncPrefectClient) else _say_when_async
    if hook not in hooks:
        hooks.append(hook)


@contextmanager
def one_client() -> Iterator[SyncPrefectClient]:
    """One client for all that is asked inside, also by Prefect itself; to make one takes longer than to ask.

    Raises:
        ConnectionError: No server is set, none answers, or it lets nobody in. The message says what to do.
    """
    with ExitStack() as stack:
        context = SyncClientContext.get()
        if context is None:
            with server_needed():
                context = _enter_new(stack)
        ask_again_soon(context.client)
        yield context.client


def _enter_new(stack: ExitStack) -> SyncClientContext:
    """Enter a client's context. Prefect asks for the server's version first, and says too little if that fails."""
    try:
        return stack.enter_context(SyncClientContext())
    except RuntimeError as error:
        if isinstance(error.__cause__, httpx.HTTPError):
            raise error.__cause__ from None
        raise


# The server closes the connection once it has written the error into its log, which takes it a moment. Who asks again
# on that connection gets no answer, and Prefect's client then waits for four seconds. So it is closed at once.
def _say_when(response: httpx.Response) -> None:
    if _may_be_locked(response):
        response.read()
        if _answer_in_time(response) and (stream := _connection_of(response)) is not None:
            stream.close()


async def _say_when_async(response: httpx.Response) -> None:
    if _may_be_locked(response):
        await response.aread()
        if _answer_in_time(response) and (stream := _connection_of(response)) is not None:
            await stream.aclose()


def _connection_of(response: httpx.Response) -> Any:
    """What httpx lets one close, if no other request has it; None: others may, or there is none."""
    return response.extensions.get("network_stream") if response.http_version.startswith("HTTP/1") else None


def _may_be_locked(response: httpx.Response) -> bool:
    return response.status_code == httpx.codes.SERVICE_UNAVAILABLE and _AGAIN_AFTER not in response.headers


def _answer_in_time(response: httpx.Response) -> bool:
    """Say in the server's place when to ask again. Returns whether the answer is Prefect's."""
    try:
        is_prefects = response.json() == _OF_PREFECT
    except ValueError:
        return False
    tries = response.request.extensions.get(_REFUSED, 0)
    pauses = LABELS_AGAIN_S if response.request.url.path.endswith("/labels") else AGAIN_S
    if is_prefects and tries < len(pauses):
        response.request.extensions[_REFUSED] = tries + 1  # Prefect's client sends the same request again
        response.headers[_AGAIN_AFTER] = str(pauses[tries])
    return is_prefects
