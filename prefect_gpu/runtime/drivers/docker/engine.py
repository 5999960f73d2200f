"""A connection to a Docker Engine, and its errors in words that say what to do."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.tls import TLSConfig
from docker.utils import version_lt

from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.drivers.docker.ssh import Dialler, SshAdapter, SshError, command

_NO_REQUEST_YET = "1.41"  # any version: with one given, nothing is asked before we have set up the connection
_CONNECTIONS = 64

_LOG_IN = "Log in to the image's registry as the worker's user, on the worker's machine (`docker login REGISTRY`)"
_REMEDIES = (
    (
        "permission denied (",
        "Put the public half of the worker's key into ~/.ssh/authorized_keys there, or give another key (`ssh_key`). "
        "One with a passphrase needs an ssh-agent: nobody is asked.",
    ),
    (
        "host key verification failed",
        "Put the machine's host key into ~/.ssh/known_hosts of the worker's user, or give it (`ssh_known_hosts`): "
        "`ssh-keyscan` fetches it, and its fingerprint must be compared with the machine's own.",
    ),
    ("ssh: connect to host", "Is the machine up, does its sshd listen on this port, and is the address right?"),
    ("could not resolve hostname", "Is the name right?"),
    ("docker: command not found", "Install Docker there, and on the PATH that `ssh` gives its commands."),
    ("docker: not found", "Install Docker there, and on the PATH that `ssh` gives its commands."),
    ("no program `ssh`", "Install it there (Debian: openssh-client)."),
    ("something over there says", "The start-up files of the shell over there must print nothing."),
    ("manifest unknown", "Check the image's name and tag: its registry has no such one."),
    ("no basic auth credentials", f"{_LOG_IN}."),
    ("unauthorized", f"{_LOG_IN}."),
    ("authentication required", f"{_LOG_IN}."),
    ("requested access to the resource is denied", f"{_LOG_IN}."),
    (
        "/v2/",
        "The image's registry does not answer: is it up, and is the image's name right? An image that is on the "
        "node needs none (`docker load`, and the pull policy Never or IfNotPresent).",
    ),
    ("requested cpus are not available", "The node has no such cores: state the cores that it has."),
    ("no space left on device", "The node's disk is full: remove old images and containers (`docker system prune`)."),
    ("cannot allocate memory", "The node's memory is used up: fewer runs at once, or a lower memory limit."),
    (
        "unable to find user",
        "The image has no such user: make it in its Dockerfile, name a USER by number, or let all runs be one, such as "
        "1000:1000: set PREFECT_INTEGRATIONS_GPU_CONTAINER_USER.",
    ),
    ("executable file not found", "The image must have Python 3.9 or newer, as `python3` on its PATH."),
    ("unknown device", "The node has no such GPU any more: see `nvidia-smi -L` there, and what is stated of its GPUs."),
    ("nvidia-container-cli", "NVIDIA's driver fails on the node: see `nvidia-smi` there."),
    ("could not select device driver", "Install the NVIDIA container toolkit on the node."),
    ("unknown or invalid runtime", "Install the NVIDIA container toolkit on the node."),
    ("certificate", "Check the certificates of the endpoint: its own, ours, and the authority that signed both."),
    ("permission denied", "This user may not use the engine: add it to the group `docker`."),
)
_IS_IT_THERE = "Is it running (`docker info`), and is the address right?"
_TRY_BY_HAND = "Is it running there? `ssh HOST docker info` must work as the worker's user, and ask nothing."


class EngineError(LaunchError):
    """The engine could not do what it was asked for. The message says what, why, and what to do."""

    explains = True


@dataclass(frozen=True)
class Endpoint:
    """Where an engine is, and how both sides know each other.

    Attributes:
        url: ``unix:///var/run/docker.sock``, ``tcp://host:2376`` or ``ssh://user@host``, for which see :mod:`.ssh`.
            By default what ``DOCKER_HOST`` says, else the socket of this machine.
        ca: File with the certificate of the authority that signed the engine's; None: no TLS, but for ``https://``,
            where the authorities of this machine count.
        certificate: File with our own certificate.
        key: File with its key; its path is all that is ever shown.
        ssh_key: File with the private key for ``ssh://``; None: as for any ``ssh`` of this user.
        ssh_known_hosts: File with the host keys that ``ssh://`` accepts; None: likewise.
        plain_tcp: Whether an engine on another machine may be asked without TLS.
        timeout_s: Seconds after which a request is given up.
    """

    url: str = field(default_factory=lambda: os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    ssh_key: str | None = None
    ssh_known_hosts: str | None = None
    plain_tcp: bool = False
    timeout_s: float = 60.0

    def connect(self) -> docker.DockerClient:
        """A new connection.

        Raises:
            EngineError: The engine cannot be reached, refuses us, or could be somebody else.
        """
        self._must_be_safe()
        with explained(self, "be reached"):
            client = self._client()
            try:
                client.api.trust_env = False  # REQUESTS_CA_BUNDLE and its like would replace the authority given here
                newest = client.api.version(api_version=False)["ApiVersion"]
                ours = DEFAULT_DOCKER_API_VERSION
                client.api._version = newest if version_lt(newest, ours) else ours
            except BaseException:
                client.close()
                raise
            return client

    def _client(self) -> docker.DockerClient:
        """A client that has not asked anything yet."""
        adapter, url, tls = None, self.url, self._tls()
        if self.url.startswith("ssh://"):
            try:
                words = command(self.url, self.timeout_s, self.ssh_key, self.ssh_known_hosts)
            except ValueError as error:
                raise EngineError(f"The engine has no proper address: {error}.") from None
            adapter = SshAdapter(Dialler(words, self.timeout_s), _CONNECTIONS)
            url, tls = "unix:///by-ssh", False  # which the adapter takes over
        client = docker.DockerClient(
            base_url=url, version=_NO_REQUEST_YET, timeout=int(self.timeout_s), tls=tls, max_pool_size=_CONNECTIONS
        )
        if adapter is not None:
            client.api.mount("http+docker://", adapter)
        return client

    def _tls(self) -> TLSConfig | bool:
        if self.ca is None:
            return False
        own = (self.certificate, self.key) if self.certificate and self.key else None
        return TLSConfig(client_cert=own, ca_cert=self.ca, verify=True)

    def _must_be_safe(self) -> None:
        """Nobody in between may read along, or pass for the engine: who has an engine is root on its machine."""
        parts = urlsplit(self.url)
        if parts.scheme in ("unix", "ssh", "npipe", "http+unix"):
            return
        given = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        lacking = [name for name, value in given.items() if value is None]
        if self.certificate is not None or self.key is not None:
            if lacking:
                raise EngineError(
                    f"docker_{lacking[0]} is not set, and docker_{'key' if self.key else 'certificate'} is: "
                    f"{_WHY[lacking[0]]} Set PREFECT_INTEGRATIONS_GPU_DOCKER_{lacking[0].upper()}, or "
                    f"`{lacking[0]}` in the cluster's block."
                )
        elif self.ca is None and parts.scheme != "https" and not self.plain_tcp and not _is_here(parts.hostname or ""):
            raise EngineError(
                f"The engine at {self.url} would be asked without TLS: whoever is in between could do there what he "
                "likes, as root. Set docker_ca, docker_certificate and docker_key, or use ssh://; in a network that "
                "nobody else is in, PREFECT_INTEGRATIONS_GPU_DOCKER_PLAIN_TCP=true (docker_plain_tcp) allows it."
            )


_WHY = {
    "ca": "nothing would tell the engine from somebody who pretends to be it.",
    "certificate": "the engine could not know the worker.",
    "key": "the certificate is of no use without it.",
}


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def explained(endpoint: Endpoint, doing: str) -> Iterator[None]:
    """Turn the errors of the SDK into an :class:`EngineError`.

    Args:
        doing: What failed, as ``"be reached"``: the engine could not ...
    """
    try:
        yield
    except ImageNotFound as error:
        raise EngineError(
            f"The image is not on the engine at {endpoint.url}, and it could not be pulled: {_said(error)}. Check its "
            f"name and tag. {_LOG_IN}, or load the image there (`docker load`)."
        ) from error
    except NotFound as error:
        raise EngineError(f"The engine at {endpoint.url} could not {doing}: {_said(error)}.") from error
    except APIError as error:
        raise EngineError(
            f"The engine at {endpoint.url} could not {doing}: {_said(error)}. {_remedy(error)}".rstrip()
        ) from error
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        ssh = _by_ssh(error)
        remedy = _remedy(ssh or error) or (_TRY_BY_HAND if ssh else _IS_IT_THERE)
        told = EngineError(f"The engine at {endpoint.url} could not {doing}: {ssh or error}. {remedy}")
        told.away = True
        raise told from error


def _said(error: APIError) -> str:
    return str(error.explanation or error).strip().rstrip(".")


def _by_ssh(error: BaseException | None) -> SshError | None:
    """What ssh said, below what became of it in the layers above."""
    while error is not None and not isinstance(error, SshError):
        error = error.__cause__ or error.__context__
    return error


def _remedy(error: Exception) -> str:
    text = str(error).lower()
    return next((remedy for words, remedy in _REMEDIES if words in text), "")
