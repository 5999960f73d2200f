"""Images that an Engine does not have: with which login they are pulled, and what is said where that fails.

The Engine is a stand-in.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import docker
import pytest

from prefect_gpu.runtime.drivers.docker import pulling
from prefect_gpu.runtime.drivers.docker.containers import ensure_image
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError, explained

IMAGE = "registry.example/team/image:1"


class Engine(ThreadingHTTPServer):
    """Has no image, and is refused each that it would pull, in the words of a real one.

    Attributes:
        refusals: What it is told of the next ones; after these, it has what it pulls.
        later: What it is told when it has begun to pull.
    """

    refusal = "unauthorized"

    def __init__(self) -> None:
        self.logins: list[str] = []
        self.refusals: list[str] = []
        self.later: list[dict[str, str]] = []
        self.has_image = False
        super().__init__(("127.0.0.1", 0), Request)


class Request(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        if self.server.has_image:
            self._write(200, {"Id": "sha256:1", "Config": {}})
        else:
            self._answer(404, "No such image")

    def do_POST(self) -> None:
        login = json.loads(base64.urlsafe_b64decode(self.headers.get("X-Registry-Auth", "e30=")))
        self.server.logins.append(login.get("password"))
        if self.server.refusals and (refusal := self.server.refusals.pop(0)):
            self._answer(500, refusal)
        elif self.server.later:
            self._tell(*self.server.later)
        elif self.server.has_image:
            self._tell({"status": "Downloaded newer image"})
        else:
            self._answer(500, self.server.refusal)

    def _answer(self, status: int, message: str) -> None:
        self._write(status, {"message": message})

    def _tell(self, *documents: object) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in [*(json.dumps(one).encode() + b"\r\n" for one in documents), b""]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _write(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_login_counts_that_was_renewed_while_the_worker_runs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of clouds last for hours. The worker pulled with the one that it had found as it started."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    client: docker.DockerClient | None = None
    for password in ("old", "new"):
        login = base64.b64encode(f"me:{password}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {"registry.example": {"auth": login}}}))
        client = client or docker.DockerClient(f"http://127.0.0.1:{engine.server_port}", version="1.41")
        with pytest.raises(docker.errors.APIError):
            ensure_image(client, IMAGE, "missing")
    assert client is not None and engine.logins == ["old", "new"]
    client.close()


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        ("unauthorized", "docker login"),
        ("manifest unknown", "name and tag"),
        (f'Head "https://{IMAGE}/v2/manifests/1": no basic auth credentials', "docker login"),
        ('Get "https://registry.example/v2/": dial tcp: no such host', "registry does not answer"),
        ("unable to find user mallory: no matching entries in passwd file", "no such user"),
        ("something new", ": something new."),
    ],
)
def test_what_an_engine_refuses_is_told_with_its_remedy(engine: Engine, refusal: str, remedy: str) -> None:
    """Where a login was missing, the registry was said to be down."""
    engine.refusal = refusal
    client = docker.DockerClient(f"http://127.0.0.1:{engine.server_port}", version="1.41")
    with pytest.raises(EngineError) as caught, explained(Endpoint("unix:///engine"), f"make a container of {IMAGE}"):
        ensure_image(client, IMAGE, "always")
    assert refusal in str(caught.value) and remedy in str(caught.value) and str(caught.value).endswith(".")
    client.close()


def test_an_image_that_must_not_be_pulled_is_not_said_to_have_been(engine: Engine) -> None:
    client = docker.DockerClient(f"http://127.0.0.1:{engine.server_port}", version="1.41")
    with pytest.raises(EngineError, match=r"is not on its node, and its pull policy is Never"):
        with explained(Endpoint("unix:///engine"), f"make a container of {IMAGE}"):
            ensure_image(client, IMAGE, "never")
    assert not engine.logins
    client.close()


@pytest.mark.parametrize(
    "refusal",
    [
        'Get "https://registry.example/v2/": dial tcp 192.0.2.1:443: connect: connection refused',
        'Get "https://registry.example/v2/": net/http: request canceled (Client.Timeout exceeded)',
        "received unexpected HTTP status: 503 Service Unavailable",
    ],
)
def test_a_registry_that_is_away_for_a_moment_is_asked_again(
    engine: Engine, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is pulled for has no retry: its first try has not begun."""
    monkeypatch.setattr(pulling, "_FIRST_PAUSE_S", 0.001)
    engine.refusals, engine.has_image = [refusal, refusal], True
    client = docker.DockerClient(f"http://127.0.0.1:{engine.server_port}", version="1.41")
    assert ensure_image(client, IMAGE, "always").id == "sha256:1"
    assert len(engine.logins) == 3
    client.close()


def test_what_goes_wrong_while_an_image_comes_is_told(engine: Engine) -> None:
    """It was said that the image has another name, perhaps."""
    full = "write /var/lib/docker/tmp/GetImageBlob1: no space left on device"
    engine.later = [{"status": "Pulling fs layer"}, {"error": full}]
    client = docker.DockerClient(f"http://127.0.0.1:{engine.server_port}", version="1.41")
    with pytest.raises(EngineError) as caught, explained(Endpoint("unix:///engine"), f"make a container of {IMAGE}"):
        ensure_image(client, IMAGE, "missing")
    assert full in str(caught.value) and "disk is full" in str(caught.value) and len(engine.logins) == 1
    client.close()
