"""The docker driver on one Engine: the conformance suite, and what only containers can show."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shutil
from pathlib import Path

import pytest
from docker import DockerClient

from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver, LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.conformance import DriverConformance, MakeDriver, MakeSpec, until
from prefect_gpu.runtime.drivers.docker import DockerDriver, Endpoint
from prefect_gpu.runtime.drivers.docker.containers import IDLE, LABEL

LOGGER = logging.getLogger("test.driver")
MIB = 1 << 20


def inside(pid: int, folder: Path) -> bool:
    """Whether a container has a process with this pid that works below a folder; many others have one, too.

    A run in a container that was made ahead has the environment of its interpreter in /proc, so that the folder tells.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = (entry / "status").read_text()
                names = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
                state = next(line.split()[1] for line in status.splitlines() if line.startswith("State:"))
                ours = (entry / "cwd").readlink().is_relative_to(folder)
                if ours and len(names) > 1 and names[-1] == str(pid) and state not in "ZX":
                    return True
    return False


def runs_of(client: DockerClient) -> list[str]:
    """Names of all containers of an engine that are runs."""
    ours = client.containers.list(all=True, ignore_removed=True, filters={"label": f"{LABEL}.pool"})
    return [one.name for one in ours if not one.name.startswith(IDLE)]


class TestOneEngine(DriverConformance):
    @pytest.fixture
    def make_driver(self, engine: Endpoint, tmp_path: Path) -> MakeDriver:
        default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
        return lambda echo: DockerDriver(engine, default, pool="p", echo=echo, logger=LOGGER)

    def still_alive(self, pid: int | str) -> bool:
        return inside(pid, self.folder) if isinstance(pid, int) else self.containers_of(pid)

    @pytest.fixture(autouse=True)
    def _client(self, engine: Endpoint, tmp_path: Path) -> None:
        self.client, self.folder = engine.connect(), tmp_path

    def containers_of(self, pid: str) -> bool:
        """Whether node:container runs."""
        return bool(self.client.containers.list(filters={"id": pid.partition(":")[2]}))

    def left(self) -> list[str]:
        """Containers of our runs, running or not."""
        return runs_of(self.client)

    async def test_no_container_is_left_once_the_end_is_known(self, driver: Driver, make_spec: MakeSpec) -> None:
        await (await driver.launch(make_spec("pass"))).wait()
        with pytest.raises(LaunchError):
            await driver.launch(make_spec("", argv=("no-such-program",)))
        assert self.left() == []

    async def test_who_leads_no_more_removes_nothing_of_the_next_leaders(
        self, driver: Driver, make_driver: MakeDriver, make_spec: MakeSpec
    ) -> None:
        await driver.launch(make_spec("import time; time.sleep(600)"))
        frozen = make_driver(lambda label, line: None)
        await frozen.start()
        frozen.may_start = lambda: False
        await frozen.sweep()
        assert len(self.left()) == 1
        frozen.may_start = lambda: True
        await frozen.sweep()
        assert self.left() == []
        await frozen.close()

    async def test_runs_of_another_servers_pool_of_the_same_name_are_left_alone(
        self, engine: Endpoint, make_spec: MakeSpec
    ) -> None:
        one, other, later = (
            DockerDriver(engine, ContainerSpec(IMAGE), pool="p", pool_id=number, echo=lambda *_: None, logger=LOGGER)
            for number in ("1", "2", "1")
        )
        for driver in (one, other, later):
            await driver.start()
        spec = dataclasses.replace(make_spec("import time; time.sleep(600)"), cwd=Path())
        handle = await one.launch(spec)
        await other.sweep()
        assert len(self.left()) == 1
        await later.sweep()
        assert self.left() == []
        await handle.wait()
        for driver in (one, other, later):
            await driver.close()

    async def test_its_secrets_cannot_be_seen_from_outside(self, driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("import time; time.sleep(600)", PREFECT_API_KEY="pnu_secret")
        handle = await driver.launch(spec)
        seen = str(self.client.containers.get(str(handle.pid).partition(":")[2]).attrs)
        assert spec.run_id in seen and "pnu_secret" not in seen
        await handle.stop(0)

    async def test_it_has_no_privileges_and_need_not_be_root(
        self, driver: Driver, make_spec: MakeSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As another user it trains, locks devices together with runs of root, and keeps its checkpoints."""
        code = """
import json, os, sys
sys.path.insert(0, "/prefect-gpu")
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
lock = os.open("/prefect-gpu-locks/of-both.lock", os.O_RDONLY | os.O_CREAT, 0o644)
open(sys.argv[1] + "/checkpoint", "w").close()
print(json.dumps([os.getuid(), os.getgid(), int(status["NoNewPrivs"]), int(status["CapBnd"], 16)]))
"""
        share = tmp_path / "checkpoints-of-run"
        for user, ids in (("games", [5, 60]), ("65534:65534", [65534, 65534]), ("", [0, 0]), ("0:0", [0, 0])):
            how = ContainerSpec(IMAGE, user=user, pids=100)
            spec = make_spec(code, argv=("python3", "-c", code, str(share)))
            handle = await driver.launch(dataclasses.replace(spec, container=how, shares=(share,), cwd=Path()))
            report = await handle.wait()
            assert report.returncode == 0, report.tail
            uid, gid, no_new, bounds = json.loads(report.tail[-1])
            net_raw, mknod = 1 << 13, 1 << 27
            assert ([uid, gid], no_new, bounds & (net_raw | mknod)) == (ids, 1, 0)
            assert (share.stat().st_uid, share.stat().st_gid) == tuple(ids)
            shutil.rmtree(share)
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]  # a warm one was made in the setup
        assert sum("are root in their containers" in record.getMessage() for record in records) == 1, (
            "once of each image"
        )

    async def test_its_memory_limit_ends_it_and_is_said(
        self, driver: Driver, make_spec: MakeSpec, tmp_path: Path
    ) -> None:
        spec = with_container(make_spec("x = bytearray(400 << 20)"), memory_bytes=100 * MIB, tmp_path=tmp_path)
        report = await (await driver.launch(spec)).wait()
        assert report.returncode == -9 and "more memory than its container's limit" in report.cause

    @pytest.mark.parametrize("announced", [True, False])
    async def test_a_cancellation_is_told_before_the_signal(
        self, driver: Driver, make_spec: MakeSpec, announced: bool
    ) -> None:
        code = """
            import os, signal, socket, threading
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            def connect(token):
                line = socket.create_connection(("127.0.0.1", int(os.environ["AT"])))
                line.sendall(token.encode() + bytes([10]))
                return line
            assert connect("guess").recv(1) == b""
            line = connect(os.environ["WITH"])
            line.sendall(bytes([0]) + b"PF" + bytes([2, 1]))
            assert line.recv(5, socket.MSG_WAITALL) == bytes([0]) + b"PF" + bytes([1, 0]), "the first version will do"
            def told():
                print(line.recv(1).decode(), flush=True)
                line.sendall(b"a")
            threading.Thread(target=told, daemon=True).start()
            open("ready", "w").close()
            signal.sigwait([signal.SIGTERM])
            print("SIGTERM")
        """
        spec = dataclasses.replace(make_spec(code), told_at=("AT", "WITH"))
        handle = await driver.launch(spec)
        await until((spec.cwd / "ready").exists)
        if announced:
            await handle.announce_cancellation()
        await handle.stop(60)
        report = await handle.wait()
        assert (report.returncode, report.tail) == (0, ("c", "SIGTERM") if announced else ("SIGTERM",))

    async def test_an_image_that_is_not_there_is_a_launch_error(
        self, driver: Driver, make_spec: MakeSpec, tmp_path: Path
    ) -> None:
        spec = with_container(make_spec("pass"), image="no-such-image:1", pull="never", tmp_path=tmp_path)
        with pytest.raises(LaunchError, match="is not on its node"):
            await driver.launch(spec)

    async def test_its_cores_and_its_share_are_changed_while_it_runs(self, driver: Driver, make_spec: MakeSpec) -> None:
        code = """
            import os, time
            while len(os.sched_getaffinity(0)) != 2:
                time.sleep(0.02)
            print("two")
        """
        handle = await driver.launch(make_spec(code, cpus=(0,)))
        assert handle.bind((0, 1)) and handle.set_priority(0.25) and handle.set_duty(0.5)
        assert (await handle.wait()).tail == ("two",)

    async def test_a_container_that_somebody_removes_is_reported(self, driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("import time; open('ready', 'w').close(); time.sleep(600)")
        handle = await driver.launch(spec)
        await until((spec.cwd / "ready").exists)
        self.client.api.remove_container(str(handle.pid).partition(":")[2], force=True)
        report = await handle.wait()
        assert report.returncode in (None, -9)

    async def test_a_container_whose_note_a_power_loss_has_torn_goes_on(
        self, driver: Driver, make_driver: MakeDriver, make_spec: MakeSpec
    ) -> None:
        """The worker's machine lost its power, the node did not."""
        spec = make_spec("import os, time\nwhile not os.path.exists('end'):\n    time.sleep(0.02)\nraise SystemExit(5)")
        handle = await driver.launch(spec)
        (spec.run_dir / supervisor.PROCESS).write_bytes(b"")
        later = make_driver(lambda label, line: None)
        await later.start()
        adopted = await later.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None and adopted.pid == handle.pid
        (spec.cwd / "end").touch()
        assert (await adopted.wait()).returncode == 5
        await later.close()


def with_container(spec: LaunchSpec, *, tmp_path: Path, image: str = IMAGE, pull: str = "missing",
                   memory_bytes: int | None = None) -> LaunchSpec:  # fmt: skip
    how = ContainerSpec(image, pull, memory_bytes, volumes=(f"{tmp_path}:{tmp_path}",))
    return LaunchSpec(**{**vars(spec), "container": how})


async def test_an_engine_that_is_not_there_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    driver = DockerDriver(Endpoint(f"unix://{tmp_path}/none.sock"), logger=LOGGER)
    with pytest.raises(LaunchError, match=r"could not be reached.*Is it running"):
        await driver.start()
