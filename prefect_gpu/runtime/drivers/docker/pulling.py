"""An image is pulled from its registry, which may be away for a moment."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from docker.errors import APIError
from docker.utils import parse_repository_tag
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

if TYPE_CHECKING:
    from docker import DockerClient

_PATIENCE_S = 60.0  # a run has its devices meanwhile
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
# What an Engine says of a registry that is away, or has too much to do. A name that nobody knows is a mistake.
_AWAY = (
    "connection refused",
    "connection reset",
    "timeout",
    "time-out",
    "timed out",
    "deadline exceeded",
    "unexpected eof",
    ": eof",
    "toomanyrequests",
    "too many requests",
    "temporary failure",
    "server misbehaving",
    "internal server error",
    "bad gateway",
    "service unavailable",
    "network is unreachable",
)


def pull_image(client: DockerClient, name: str) -> None:
    """Pull an image, again and again for a minute if its registry is away.

    Args:
        name: With its tag or digest.

    Raises:
        docker.errors.DockerException: It cannot be pulled.
    """
    patient = Retrying(
        retry=retry_if_exception(_is_away),
        wait=wait_exponential(_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        stop=stop_after_delay(_PATIENCE_S),
        reraise=True,
    )
    patient(_pull_once, client, name)


def _pull_once(client: DockerClient, name: str) -> None:
    repository, tag = parse_repository_tag(name)
    for said in client.api.pull(repository, tag=tag, stream=True, decode=True):
        # The Engine has answered that it begins. What goes wrong later, a full disk say, is in what it tells; the SDK's
        # own `images.pull` does not read that, and then finds no image.
        if error := said.get("error"):
            raise APIError("The image could not be pulled", explanation=str(error))


def _is_away(error: BaseException) -> bool:
    if not isinstance(error, APIError) or (error.status_code or HTTPStatus.INTERNAL_SERVER_ERROR) < 500:
        return False
    words = str(error.explanation or error).lower()
    return any(away in words for away in _AWAY)
