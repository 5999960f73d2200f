"""The docker driver by ssh: a real OpenSSH server, and Docker's own client on its side of the connection."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import logging
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.sandbox import Process, free_port, wait_until
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver
from prefect_gpu.runtime.drivers.conformance import Echo, MakeDriver, MakeSpec, probes, until
from prefect_gpu.runtime.drivers.docker import Ahead, DockerDriver, Endpoint, EngineError
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle
from prefect_gpu.runtime.drivers.docker.ssh import command
from tests.runtime.drivers.docker.test_engine import runs_of

LOGGER = logging.getLogger("test.driver")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

pytestmark = pytest.mark.needs("openssh")


@dataclasses.dataclass(frozen=True)
class Server:
    """An OpenSSH server, and what one needs to be let in.

    Attributes:
        ports: By what is there: ``engine``, ``no docker``, ``no engine``, ``a talkative shell``.
    """

    folder: Path
    ports: dict[str, int]
    process: Process

    def endpoint(self, port: int | None = None, path: str = "", **more: object) -> Endpoint:
        """The engine by ssh; at another port, whatever is there."""
        known = {"ssh_key": str(self.folder / "key"), "ssh_known_hosts": str(self.folder / "known hosts")}
        url = f"ssh://{getpass.getuser()}@127.0.0.1:{port or self.ports['engine']}{path}"
        return Endpoint(url, **{**known, **more})  # type: ignore[arg-type]

    def sessions(self) -> list[psutil.Process]:
        """Its processes, one or more for each connection, and what they have started."""
        return [one for one in psutil.Process(self.process.pid).children(recursive=True) if one.is_running()]


@pytest.fixture(scope="session")
def server(engine: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host_key", "other_host_key", "key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    ports = {name: free_port() for name in ("engine", "no docker", "no engine", "a talkative shell")}
    for file, pair in (("known hosts", "host_key"), ("other known hosts", "other_host_key")):
        public = " ".join((folder / f"{pair}.pub").read_text().split()[:2])
        (folder / file).write_text("".join(f"[127.0.0.1]:{port} {public}\n" for port in ports.values()))
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, as it asks the whole network, can see nothing else
    empty = folder / "empty"
    empty.mkdir()
    (folder / "config").write_text(
        "".join(f"ListenAddress 127.0.0.1:{port}\n" for port in ports.values())
        + f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\nStrictModes no\n"
        # Home: the start-up files of whoever runs the tests are not part of them.
        f"Match LocalPort {ports['engine']}\nSetEnv HOME={empty} PATH=/usr/bin:/bin DOCKER_HOST={engine.url}\n"
        f"Match LocalPort {ports['no docker']}\nSetEnv HOME={empty} PATH={empty}\n"
        f"Match LocalPort {ports['no engine']}\nSetEnv HOME={empty} PATH=/usr/bin:/bin "
        f"DOCKER_HOST=unix://{empty}/docker.sock\n"
        f"Match LocalPort {ports['a talkative shell']}\nForceCommand echo hello there\n"
    )
    program = shutil.which("sshd", path=PATH)
    process = Process(
        [str(program), "-D", "-e", "-f", str(folder / "config")], log=folder / "log", env={"PATH": PATH}, cwd=folder
    )
    try:
        for port in ports.values():
            process.wait_for_output(f"port {port}")
        yield Server(folder, ports, process)
    finally:
        process.terminate()


def programs() -> list[psutil.Process]:
    """What runs of ours by the name of ssh."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "ssh" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
async def make_driver(server: Server, tmp_path: Path) -> AsyncIterator[MakeDriver]:
    """Drivers by ssh. When they are closed, no program of theirs may be left, here or there."""
    default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
    made: list[DockerDriver] = []

    def make(echo: Echo, ahead: Ahead | None = None) -> DockerDriver:
        made.append(DockerDriver(server.endpoint(), default, pool="ssh", ahead=ahead, echo=echo, logger=LOGGER))
        return made[-1]

    yield make
    for driver in made:
        await driver.close()
    assert programs() == []
    await until(lambda: server.sessions() == [])


@pytest.fixture
async def driver(make_driver: MakeDriver, echoed: list[str]) -> Driver:
    made = make_driver(lambda label, line: echoed.append(line))
    await made.start()
    return made


@pytest.fixture
def echoed() -> list[str]:
    return []


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    return probes(tmp_path)


async def test_a_run_from_its_start_to_its_end_under_another_worker(
    driver: Driver, make_driver: MakeDriver, make_spec: MakeSpec, echoed: list[str], engine: Endpoint
) -> None:
    code = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(7)))
        print("begun", flush=True)
        while len(os.sched_getaffinity(0)) != 2:
            time.sleep(0.02)
        print("two cores", flush=True)
        while not os.path.exists("/prefect-gpu/note"):
            time.sleep(0.02)
        print(open("/prefect-gpu/note").read(), flush=True)
        time.sleep(600)
    """
    spec = make_spec(code, cpus=(0,))
    handle = await driver.launch(spec)
    await until(lambda: echoed == ["begun"])
    assert handle.bind((0, 1)) and handle.set_duty(0.5)
    await until(lambda: echoed[1:] == ["two cores"])
    assert isinstance(handle, ContainerHandle)
    await handle.give("note", b"a file")
    await until(lambda: echoed[2:] == ["a file"])
    assert 1 <= len(programs()) <= 6, "one follows the output, and few wait for the next request"

    await driver.close()
    assert programs() == [], "nor is the one left that followed a run that goes on"
    await until(lambda: f"output {spec.run_id}" not in {thread.name for thread in threading.enumerate()})

    later = make_driver(lambda label, line: echoed.append(line))
    await later.start()
    adopted = await later.adopt(spec.run_id, spec.run_dir)
    assert adopted is not None and adopted.pid == handle.pid
    await adopted.stop(60)
    report = await adopted.wait()
    assert (report.returncode, report.tail) == (7, ("begun", "two cores", "a file", "saved"))
    client = engine.connect()
    assert runs_of(client) == []
    client.close()


def test_more_connections_than_a_server_lets_in_at_once(server: Server) -> None:
    client = server.endpoint().connect()
    with ThreadPoolExecutor(20) as threads:
        streams = list(threads.map(lambda _: client.events(), range(20)))
    assert len(programs()) >= 20
    for stream in streams:
        stream.close()
    assert client.ping()
    wait_until(lambda: len(programs()) <= 5, what="few are kept")
    client.close()
    assert programs() == []


async def test_connections_that_break_are_made_again(driver: Driver, make_spec: MakeSpec, echoed: list[str]) -> None:
    code = """
        import os, time
        print("before", flush=True)
        while not os.path.exists("end"):
            time.sleep(0.02)
        print("after")
    """
    spec = make_spec(code)
    handle = await driver.launch(spec)
    await until(lambda: echoed == ["before"])
    broken = programs()
    for process in broken:
        process.kill()
    await until(lambda: set(programs()) - set(broken))
    (spec.cwd / "end").touch()
    report = await handle.wait()
    assert (report.returncode, echoed) == (0, ["before", "after"])


async def test_a_container_waits_for_its_run(make_driver: Any, make_spec: MakeSpec) -> None:
    driver = make_driver(lambda label, line: None, Ahead())
    await driver.start()
    assert (await (await driver.launch(make_spec("pass"))).wait()).returncode == 0
    await until(driver._warm.waiting)
    handle = await driver.launch(make_spec("print('ran')"))
    assert handle.warm and (await handle.wait()).tail == ("ran",)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("another key", r"Permission denied \(publickey.*Put the public half of the worker's key into"),
        ("another host key", r"Host key verification failed.*`ssh-keyscan` fetches it"),
        ("nothing listens", r"ssh: connect to host 127.0.0.1 .* refused. Is the machine up, does its sshd listen"),
        ("no answer", r"timed out.*`ssh HOST docker info` must work"),
        ("no docker", r"docker: command not found. Install Docker there"),
        ("no engine", r"docker.sock: connect: no such file or directory. Is it running there"),
        ("no such socket", r"none.sock: connect: no such file or directory. Is it running there"),
        ("a talkative shell", r"something over there says 'hello.*must print nothing"),
    ],
)
def test_a_connection_that_cannot_be_says_what_to_do(server: Server, where: str, said: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = {
            "another key": server.endpoint(ssh_key=str(server.folder / "other_key")),
            "another host key": server.endpoint(ssh_known_hosts=str(server.folder / "other known hosts")),
            "nothing listens": server.endpoint(free_port()),
            "no answer": server.endpoint(silent.getsockname()[1], timeout_s=4),
            "no such socket": server.endpoint(path="/none.sock"),
        }.get(where) or server.endpoint(server.ports[where])
        with pytest.raises(EngineError, match=f"could not be reached: .*{said}") as raised:
            endpoint.connect()
    assert raised.value.away and str(server.folder / "key") not in str(raised.value)
    assert programs() == []


def test_without_the_program_it_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(server.folder / "empty"))
    with pytest.raises(EngineError, match=r"no program `ssh` on the worker's machine. Install it there"):
        server.endpoint().connect()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ssh://me:secret@host", "a password does not belong into the address"),
        ("ssh://host:port", "Port could not be cast"),
        ("ssh://", "names no host"),
    ],
)
def test_an_address_that_is_none_is_an_error(url: str, said: str) -> None:
    with pytest.raises(EngineError, match=f"no proper address.*{said}") as raised:
        Endpoint(url).connect()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "end"),
    [
        ("ssh://Node-A", ["-T", "--", "Node-A", "docker system dial-stdio"]),
        ("ssh://me@host:2222", ["-T", "-l", "me", "-p", "2222", "--", "host", "docker system dial-stdio"]),
        ("ssh://[::1]:22", ["-T", "-p", "22", "--", "::1", "docker system dial-stdio"]),
        ("ssh://h/run/a;b", ["-T", "--", "h", "docker --host 'unix:///run/a;b' system dial-stdio"]),
    ],
)
def test_what_is_given_to_ssh(url: str, end: list[str]) -> None:
    words = command(url, 60)
    options = {word.partition("=")[0] for word, before in zip(words[1:], words, strict=False) if before == "-o"}
    assert "BatchMode" in options and not options & {"Port", "User", "IdentitiesOnly", "StrictHostKeyChecking"}
    assert [word for word, before in zip(words[1:], words, strict=False) if "-o" not in (word, before)] == end
