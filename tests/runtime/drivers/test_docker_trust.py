"""Which Engines a worker talks to, and which labels it believes. The Engines answer one question, over real TLS."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.drivers.docker import Endpoint, EngineError
from prefect_gpu.runtime.drivers.docker.nodes import SwarmNode

pytestmark = pytest.mark.needs("openssl")
CERTIFICATES = Path(__file__).parents[3] / "deployments" / "certificates.sh"
Serve = Callable[..., HTTPServer]


class _Engine(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        answer = json.dumps({"ApiVersion": "1.41"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Serve]:
    """What says that it is an Engine, at 127.0.0.1, with a node's certificates or without any."""
    servers: list[HTTPServer] = []

    def served(node: Path | None = None) -> HTTPServer:
        server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Engine,), {"asked": []}))
        if node is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(node / "certificate.pem", node / "key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield served
    for server in servers:
        server.shutdown()
        server.server_close()


def asked(server: HTTPServer) -> list[str]:
    return server.RequestHandlerClass.asked  # type: ignore[attr-defined, no-any-return]


def url_of(server: HTTPServer) -> str:
    return f"tcp://127.0.0.1:{server.server_port}"


def certificates(folder: Path) -> Path:
    """An authority of its own, a node `n1` at 127.0.0.1, and a worker."""
    subprocess.run(["sh", str(CERTIFICATES), str(folder), "n1=127.0.0.1"], check=True, capture_output=True)
    return folder


def own(folder: Path) -> dict[str, str]:
    return {"certificate": str(folder / "worker" / "certificate.pem"), "key": str(folder / "worker" / "key.pem")}


def test_whoever_pretends_to_be_the_engine_is_told_nothing(tmp_path: Path, serve: Serve) -> None:
    ours, theirs = certificates(tmp_path / "ours"), certificates(tmp_path / "theirs")
    attacker = serve(theirs / "n1")
    with pytest.raises(EngineError, match=r"docker_ca is not set.*PREFECT_INTEGRATIONS_GPU_DOCKER_CA"):
        Endpoint(url_of(attacker), **own(ours)).connect()
    with pytest.raises(EngineError, match="certificate"):
        Endpoint(url_of(attacker), ca=str(ours / "ca.pem"), **own(ours)).connect()
    assert asked(attacker) == []
    engine = serve(ours / "n1")
    Endpoint(url_of(engine), ca=str(ours / "ca.pem"), **own(ours)).connect().close()
    assert asked(engine) == ["/version"]


@pytest.mark.parametrize("lacking", ["certificate", "key"])
def test_half_of_a_pair_is_named(tmp_path: Path, lacking: str) -> None:
    given = {name: value for name, value in own(tmp_path).items() if name != lacking}
    with pytest.raises(EngineError, match=f"docker_{lacking} is not set"):
        Endpoint("tcp://127.0.0.1:1", ca="ca.pem", **given).connect()


@pytest.mark.parametrize("scheme", ["tcp", "http"])
def test_without_tls_only_this_machine_is_asked_unless_it_is_said(scheme: str, serve: Serve) -> None:
    local = serve()
    Endpoint(url_of(local).replace("tcp", scheme)).connect().close()
    assert asked(local) == ["/version"]
    far = f"{scheme}://192.0.2.1:2375"  # nobody's address
    with pytest.raises(EngineError, match=r"without TLS.*docker_plain_tcp"):
        Endpoint(far).connect()
    with pytest.raises(EngineError, match="could not be reached"):
        Endpoint(far, plain_tcp=True, timeout_s=1).connect()


def test_what_a_node_says_of_its_place_is_not_believed_and_what_the_manager_says_is() -> None:
    itself = {
        "prefect-gpu.endpoint": "tcp://192.0.2.66:2376",
        "prefect-gpu.rack": "theirs",
        "prefect-gpu.virtual-devices": "2",
        "team": "a",
    }
    told: dict[str, Any] = {
        "ID": "n",
        "Description": {
            "Hostname": "n1",
            "Resources": {"NanoCPUs": 2_000_000_000, "MemoryBytes": 1 << 30},
            "Engine": {"Labels": itself},
        },
        "Spec": {"Availability": "active", "Labels": {}},
        "Status": {"State": "ready", "Addr": "10.0.0.1"},
    }
    node = SwarmNode.of(told)
    assert node.label("endpoint") == "" and node.label("rack") == ""
    assert node.ignored == ("prefect-gpu.endpoint", "prefect-gpu.rack")
    assert len(node.as_node().devices) == 2, "what it has, nobody knows better"
    told["Spec"]["Labels"] = {"prefect-gpu.endpoint": "tcp://10.0.0.1:2376"}
    assert SwarmNode.of(told).label("endpoint") == "tcp://10.0.0.1:2376"
