"""What is told to whoever needs Prefect's server, where none is set, none answers, or it lets nobody in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.settings import get_current_settings

_SET_IT = "`prefect config set PREFECT_API_URL=http://HOST:4200/api`. To try things out: `prefect-gpu up`."
_LETS_NOBODY_IN = (401, 403)
_OF_ANOTHER = (404, 502, 503, 504)  # with other codes Prefect says itself what it refuses


@contextmanager
def server_needed(otherwise: str = "") -> Iterator[None]:
    """Do what takes the server. Where none is set, Prefect would start one for this process, which no worker serves.

    Args:
        otherwise: What it means that there is none, such as "Nobody hears of it". The error begins with it.

    Raises:
        ConnectionError: No server is set, none answers, or it lets nobody in. The message says what to do.

    Example:
        >>> from prefect.settings import PREFECT_API_URL, temporary_settings
        >>> with temporary_settings(restore_defaults={PREFECT_API_URL}), server_needed("Nobody hears of it"):
        ...     print("never")
        Traceback (most recent call last):
        ConnectionError: Nobody hears of it: PREFECT_API_URL is not set. Say where Prefect's server is: `prefect ...`.
    """
    begin = f"{otherwise}: " if otherwise else ""
    if not (configured := get_current_settings().api.url):
        raise ConnectionError(f"{begin}PREFECT_API_URL is not set. Say where Prefect's server is: {_SET_IT}")
    try:
        yield
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        if code not in _LETS_NOBODY_IN + _OF_ANOTHER:
            raise
        remedy = (
            "Give PREFECT_API_KEY, or PREFECT_API_AUTH_STRING."
            if code in _LETS_NOBODY_IN
            else "Is it Prefect's, and is it well?"
        )
        raise ConnectionError(f"{begin}PREFECT_API_URL={_masked(configured)} answers {code}. {remedy}") from error
    except httpx.TransportError as error:
        none = "no Prefect server" if begin else "No Prefect server"
        raise ConnectionError(
            f"{begin}{none} answers at {_masked(configured)} ({error!r}). Start it, or say where it is: {_SET_IT}"
        ) from error


def _masked(url: str) -> str:
    return str(httpx.URL(url).copy_with(userinfo=b""))
