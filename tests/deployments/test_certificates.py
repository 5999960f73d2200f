"""The certificates of `deployments/certificates.sh` are what Docker's Engine and its clients ask for."""

from __future__ import annotations

import ssl
import stat
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("openssl")
SCRIPT = Path(__file__).parents[2] / "deployments" / "certificates.sh"


def make(folder: Path, *nodes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), str(folder), *nodes], capture_output=True, text=True, check=False)


def handshake(node: Path, name: str, worker: Path) -> str | None:
    """What a client that is the worker and a server that is the node agree on, without a network."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, folder in ((server, node), (client, worker)):
        context.load_verify_locations(folder / "ca.pem")
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=name)
    theirs = server.wrap_bio(up, down, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    return ours.version()


def test_worker_and_nodes_know_each_other_by_address_and_name(tmp_path: Path) -> None:
    made = make(tmp_path, "n1=10.0.0.11", "n2=trainings.example")
    assert made.returncode == 0, made.stderr
    for node, name in (("n1", "10.0.0.11"), ("n1", "n1"), ("n2", "trainings.example")):
        assert handshake(tmp_path / node, name, tmp_path / "worker")
    try:
        handshake(tmp_path / "n1", "10.0.0.12", tmp_path / "worker")
    except ssl.SSLCertVerificationError:
        pass
    else:
        raise AssertionError("a node must not pass for another one")
    for key in tmp_path.rglob("*key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_what_there_is_already_stays(tmp_path: Path) -> None:
    make(tmp_path, "n1=10.0.0.11")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    assert make(tmp_path, "n1=10.0.0.11", "n2=10.0.0.12").stdout == "n2: made\n"
    assert all(path.read_bytes() == content for path, content in before.items())
    assert handshake(tmp_path / "n2", "n2", tmp_path / "worker")


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    assert "NAME=ADDRESS" in make(tmp_path, "n1").stderr
    assert "give the node another name" in make(tmp_path, "worker=10.0.0.1").stderr
    assert make(tmp_path, "n1=").returncode == 2
