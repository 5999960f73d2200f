"""A server, a pool and a worker of one's own, for trying out: all in one folder, until they are ended.

Everything that belongs to it has its home in that folder, which is how it is found again. So nothing that others
started is ever ended, and there is no file of process numbers that could be wrong.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil

from prefect_gpu.lab.sandbox import Sandbox, SandboxError, processes_of, undisturbed

FOLDER = ".prefect-gpu"
"""In the folder where the user works."""

VIRTUAL_DEVICES = "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES"
"""A setting that what is up was started with."""

_NOTE = "up.json"
_LEAVE_S = 1.0  # between the two signals that let a worker leave at once
_END_S = 10.0
_DRAIN_S = 86_400.0
_ANSWERS_S = 60.0


@dataclass(frozen=True)
class Running:
    """What is up.

    Attributes:
        api_url: Prefect's API, as ``PREFECT_API_URL`` has it.
        ui_url: Prefect's pages.
        state_dir: The worker's state folder.
        pool: Name of the pool that the worker serves.
        kind: Where runs are: ``process`` or ``docker``.
        virtual_devices: The setting of this name that it was given; None: none.
    """

    api_url: str
    ui_url: str
    state_dir: str
    pool: str
    kind: str = "process"
    virtual_devices: str | None = None

    def settings(self) -> dict[str, str]:
        """What a command must be told to find it."""
        return {"PREFECT_API_URL": self.api_url, "PREFECT_INTEGRATIONS_GPU_STATE_DIR": self.state_dir}


class TryOut:
    """What :func:`start` has left in a folder.

    Args:
        where: The folder where the user works.
    """

    def __init__(self, where: Path) -> None:
        self.folder = where.resolve() / FOLDER

    def running(self) -> Running | None:
        """What is up there, if it answers."""
        try:
            found = Running(**json.loads((self.folder / _NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        if not self._processes("server", "start"):
            return None
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{found.api_url}/health", timeout=5.0, trust_env=False).status_code == 200:
                return found
        return None

    def has_worker(self) -> bool:
        """Whether its worker still runs: it may have been killed while the server went on."""
        return bool(self._processes("worker", "start"))

    def start(self, pool: str, settings: Mapping[str, str] | None = None, kind: str = "process") -> Running:
        """Start a server, make the pool, and start a worker. What an earlier one left in the folder is gone on with.

        Args:
            settings: More environment variables for both.
            kind: ``docker``: runs are containers of this machine's Engine, and reach both at its bridge's address.

        Raises:
            SandboxError: Something did not start; then nothing is left running. The message has the end of its log. Or
                a server of this folder runs already: two would write to one database. Or a worker does without one.
            OSError: The folder cannot be used; then nothing is left running, either.
        """
        if self._processes("server", "start"):
            raise SandboxError(
                f"A Prefect server of {self.folder} runs, and does not answer as it should. If it is busy or still "
                "starting, try again in a minute; else end it: prefect-gpu down."
            )
        if self.has_worker():  # it has the pool, so that another one would wait for it in vain
            raise SandboxError(
                f"The Prefect server of {self.folder} is gone, and its worker still runs. End it, with what it trains, "
                "and start both again: prefect-gpu down && prefect-gpu up."
            )
        devices = (settings or {}).get(VIRTUAL_DEVICES)
        host = bridge_address() if kind == "docker" else "127.0.0.1"
        if kind == "docker":
            told = {"DRIVER": "docker", "ADVERTISE": host, "CHANNEL_HOST": host}
            settings = {f"PREFECT_INTEGRATIONS_GPU_{name}": value for name, value in told.items()} | dict(
                settings or {}
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / ".gitignore").write_text("*\n")
        sandbox = Sandbox(self.folder, settings, host)
        try:
            sandbox.start_server()
            found_type = _type_of_pool(sandbox.api_url, pool)
            if found_type is None:
                sandbox.prefect("work-pool", "create", pool, "--type", "gpu")
            elif found_type != "gpu":  # a worker of that type would start, and know nothing of devices
                raise SandboxError(
                    f"--pool {pool}: there is a pool of this name in {self.folder}, of the type {found_type!r}, and "
                    "not 'gpu'. Give another name."
                )
            sandbox.start_worker(pool, name="tryout")
            state_dir = sandbox.env["PREFECT_INTEGRATIONS_GPU_STATE_DIR"]
            found = Running(sandbox.api_url, sandbox.ui_url, state_dir, pool, kind, devices)
            (self.folder / _NOTE).write_text(json.dumps(asdict(found)))
        except BaseException:
            with undisturbed():
                sandbox.close()
            raise
        return found

    def training(self, running: Running) -> int:
        """How many runs of it run."""
        wanted = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
        with contextlib.suppress(httpx.HTTPError, ValueError, TypeError):  # a server that is too busy says so in JSON
            return int(httpx.post(f"{running.api_url}/flow_runs/count", json=wanted, trust_env=False).json())
        return 0

    def end(self, *, drain: bool = False) -> int:
        """End everything. Its folder stays, and :meth:`start` goes on with it.

        Args:
            drain: Wait for the runs that train, rather than end them.

        Returns:
            How many processes were ended.
        """
        before = self._processes()
        workers = self._processes("worker", "start")
        for process in workers:
            _terminate(process)
        if workers and not drain:
            time.sleep(_LEAVE_S)  # two signals that come at once may arrive as one
            for process in workers:
                _terminate(process)
        psutil.wait_procs(workers, timeout=_DRAIN_S if drain else _END_S)
        servers = self._processes("server", "start")
        for process in servers:
            _terminate(process)
        psutil.wait_procs(servers, timeout=_END_S)
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(FileNotFoundError):
            (self.folder / _NOTE).unlink()
        return len(before)

    def delete(self) -> bool:
        """Remove the folder, with all runs, checkpoints and the history. To be called when nothing runs.

        Returns:
            Whether all of it is gone: containers may have left what this user may not remove.
        """
        shutil.rmtree(self.folder.resolve(), ignore_errors=True)
        if self.folder.is_symlink() and not self.folder.exists():
            self.folder.unlink()
        return not self.folder.exists()

    def _processes(self, *words: str) -> list[psutil.Process]:
        """Those that have their home here, and these words in their command line."""
        found = []
        for process in processes_of(self.folder / "home"):
            with contextlib.suppress(psutil.Error):
                if set(words) <= {*process.cmdline()}:
                    found.append(process)
        return found


def _type_of_pool(api_url: str, pool: str) -> str | None:
    """None: there is no such pool."""
    try:
        # Prefect's server on SQLite sometimes answers nobody for a minute.
        answer = httpx.get(f"{api_url}/work_pools/{quote(pool, safe='')}", timeout=_ANSWERS_S, trust_env=False)
    except httpx.HTTPError as error:
        raise SandboxError(
            f"The Prefect server at {api_url} was asked for its pools, and did not answer: {error!r}"
        ) from error
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        raise SandboxError(f"The Prefect server at {api_url} was asked for its pools, and said: {answer.text[:500]}")
    return str(answer.json()["type"])


def bridge_address() -> str:
    """This machine's address in the network of its Docker Engine's containers.

    Raises:
        SandboxError: No Engine answers here, or it has no such network. The message says what to do.
    """
    import docker
    from docker.errors import DockerException, NotFound

    try:
        bridge = docker.from_env().networks.get("bridge").attrs["Options"]["com.docker.network.bridge.name"]
    except (NotFound, LookupError) as error:
        raise SandboxError(
            "The Docker Engine has no network `bridge`, by which containers reach what is started here. Take "
            "`bridge` out of its settings (/etc/docker/daemon.json has it as `none`, say), and restart it "
            "(`sudo systemctl restart docker`)."
        ) from error
    except (DockerException, OSError) as error:
        raise SandboxError(
            f"No Docker Engine of this machine answers: {error}. Start it (`sudo systemctl start docker`), and let "
            "this user use it (`sudo usermod -aG docker $USER`, and log in again)."
        ) from error
    found = psutil.net_if_addrs().get(bridge, ())
    address = next((one.address for one in found if one.family == socket.AF_INET), None)
    if address is None:
        raise SandboxError(
            f"The Docker Engine that answers has its containers behind {bridge}, which is no network of this machine. "
            "It is on another machine, or in a virtual one: let DOCKER_HOST name an Engine of this machine."
        )
    return address


def _terminate(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.terminate()
