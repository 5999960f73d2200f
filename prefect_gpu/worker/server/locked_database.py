"""Prefect's server on SQLite has its database locked for a moment now and then. Then it is asked again soon.

It answers 503 at once to a request that reads before it writes, if another one has written in between. Prefect's client
asks again after two seconds and then four. Meanwhile a user waits for an answer, or a device for its run.
"""

from __future__ import annotations

import httpx
from prefect.client.orchestration import PrefectClient

AGAIN_S = (0.05, 0.2, 0.4, 0.8, 1.6, 12.0)
"""After so many seconds it is asked again, time after time, where Prefect's client would take 2, 4, 8 and so on."""
LABELS_AGAIN_S = (0.02, 0.05, 0.1, 0.25, 0.5)
"""The same for labels. The server reads them before it writes them, and others often write in between where runs start.

A user is told of a promise once its label is there. A caller that needs the label asks on (:meth:`.Asking.persist`).
"""

_AGAIN_AFTER = "Retry-After"  # which Prefect's client heeds
_REFUSED = "prefect_gpu.locked"
_OF_PREFECT = {"exception_message": "Service Unavailable"}  # a gateway says something else, and is given time


def ask_again_soon(client: PrefectClient) -> None:
    """Let this client's requests wait for a locked database not much longer than it is locked."""
    client._client.event_hooks["response"].append(_say_when)


async def _say_when(response: httpx.Response) -> None:
    if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or _AGAIN_AFTER in response.headers:
        return
    await response.aread()
    try:
        is_prefects = response.json() == _OF_PREFECT
    except ValueError:
        return
    tries = response.request.extensions.get(_REFUSED, 0)
    pauses = LABELS_AGAIN_S if response.request.url.path.endswith("/labels") else AGAIN_S
    if is_prefects and tries < len(pauses):
        response.request.extensions[_REFUSED] = tries + 1  # Prefect's client sends the same request again
        response.headers[_AGAIN_AFTER] = str(pauses[tries])
