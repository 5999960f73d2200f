"""What every driver has to do, as tests: subclass :class:`DriverConformance`, say how a driver is made, run pytest.

Example::

    class TestMyDriver(DriverConformance):
        @pytest.fixture
        def make_driver(self):
            return lambda echo: MyDriver(echo=echo)

The tests start real processes, wait for what happens and never for a time to pass. They need ``pytest`` and
``pytest-asyncio`` (mode ``auto``).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers.base import Driver, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.training.protocol import ENV_RUN_ID

Echo = Callable[[str, str], None]
MakeDriver = Callable[[Echo], Driver]
MakeSpec = Callable[..., LaunchSpec]

# Two processes that outlive their parent in the ways that there are: another session, SIGTERM ignored, orphaned.
LEAVE_GRANDCHILDREN = """
import os, signal, sys, time
def leave(name):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            with open(name + ".tmp", "w") as file:
                file.write(str(os.getpid()))
            os.rename(name + ".tmp", name)
            time.sleep(600)
        if name == "orphan":
            os._exit(0)
        time.sleep(600)
for name in ("child", "orphan"):
    leave(name)
while not (os.path.exists("child") and os.path.exists("orphan")):
    time.sleep(0.01)
"""


def alive(pid: int) -> bool:
    """Whether a process of this machine runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that another process does; how long, only the test's own timeout says."""
    while not condition():  # noqa: ASYNC110 -- there is no event to wait for
        await asyncio.sleep(0.02)


def probes(folder: Path) -> MakeSpec:
    """Make specs of runs whose module is the given code, ``make(code, argv=(), cpus=(), **env)``, below a folder."""
    numbers = itertools.count(1)

    def make(code: str, *, argv: tuple[str, ...] = (), cpus: tuple[int, ...] = (), **env: str) -> LaunchSpec:
        number = next(numbers)
        cwd = folder / f"cwd{number}"
        cwd.mkdir()
        (cwd / "conformance_probe.py").write_text(textwrap.dedent(code))
        path = os.pathsep.join([os.path.dirname(sys.executable), os.defpath])
        # What a warm start has to have in common with the worker.
        kinds = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_")
        shared = {name: value for name, value in os.environ.items() if name.startswith(kinds)}
        return LaunchSpec(
            run_id=f"{folder.name}-{number}",
            run_dir=folder / f"run{number}",
            argv=argv or ("python", "-m", "conformance_probe"),
            env={**shared, "PATH": path, ENV_RUN_ID: f"{folder.name}-{number}", **env},
            cwd=cwd,
            cpus=cpus,
            label=f"run {number}",
        )

    return make


class DriverConformance:
    """The suite. A subclass gives :meth:`make_driver`; one whose processes live elsewhere also ``still_alive``."""

    @pytest.fixture
    def make_driver(self) -> MakeDriver:
        """Make a driver that is not started; called with ``echo(label, line)``. Every call makes a new worker's."""
        raise NotImplementedError

    def still_alive(self, pid: int | str) -> bool:
        """Whether a process runs that a run has told the pid of."""
        return alive(int(pid))

    @pytest.fixture
    def echoed(self) -> list[tuple[str, str]]:
        return []

    @pytest.fixture
    async def driver(self, make_driver: MakeDriver, echoed: list[tuple[str, str]]) -> AsyncIterator[Driver]:
        driver = make_driver(lambda label, line: echoed.append((label, line)))
        await driver.start()
        yield driver
        await driver.close()

    @pytest.fixture
    async def later_driver(self, make_driver: MakeDriver) -> AsyncIterator[Driver]:
        """The driver of a worker that was started after the first one."""
        driver = make_driver(lambda label, line: None)
        await driver.start()
        yield driver
        await driver.close()

    @pytest.fixture
    def make_spec(self, tmp_path: Path) -> MakeSpec:
        return probes(tmp_path)

    # ---- ends ----

    @pytest.mark.parametrize(
        ("code", "returncode"),
        [
            ("pass", 0),
            ("raise SystemExit", 0),
            ("import sys; sys.exit(3)", 3),
            ("import os; os._exit(255)", 255),
            ("import sys; sys.exit('a message is an error')", 1),
            ("import os; os.kill(os.getpid(), 9)", -9),
            ("import os; os.kill(os.getpid(), 15)", -15),
            ("raise KeyboardInterrupt", -2),
        ],
    )
    async def test_the_return_code_is_that_of_the_process(
        self, driver: Driver, make_spec: MakeSpec, code: str, returncode: int
    ) -> None:
        handle = await driver.launch(make_spec(code))
        assert (await handle.wait()).returncode == returncode

    async def test_an_uncaught_exception_is_shown_and_is_an_error(self, driver: Driver, make_spec: MakeSpec) -> None:
        report = await (await driver.launch(make_spec("def f():\n    1 / 0\nf()"))).wait()
        assert report.returncode == 1
        assert report.tail[-1] == "ZeroDivisionError: division by zero"
        assert any('conformance_probe.py", line 2, in f' in line for line in report.tail)

    async def test_exit_handlers_and_threads_run_to_their_end(self, driver: Driver, make_spec: MakeSpec) -> None:
        code = """
            import atexit, threading, time
            atexit.register(print, "atexit")
            threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
            print("main")
        """
        report = await (await driver.launch(make_spec(code))).wait()
        assert (report.returncode, report.tail) == (0, ("main", "thread", "atexit"))

    async def test_a_shell_command_runs(self, driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("", argv=("bash", "-c", "echo $0 $GREETING; exit 4", "zero"), GREETING="hello")
        report = await (await driver.launch(spec)).wait()
        assert (report.returncode, report.tail) == (4, ("zero hello",))

    async def test_several_callers_may_wait(self, driver: Driver, make_spec: MakeSpec) -> None:
        handle = await driver.launch(make_spec("import time; time.sleep(0.3)"))
        impatient = asyncio.create_task(handle.wait())
        await asyncio.sleep(0)
        impatient.cancel()
        reports = await asyncio.gather(*(handle.wait() for _ in range(5)))
        assert {report.returncode for report in reports} == {0}
        assert await handle.wait() == reports[0]

    async def test_what_it_used_is_reported(self, driver: Driver, make_spec: MakeSpec) -> None:
        code = """
            block = bytearray(200 * 1024**2)
            for i in range(0, len(block), 4096):
                block[i] = 1
            x = sum(i * i for i in range(10**6))
        """
        report = await (await driver.launch(make_spec(code))).wait()
        assert report.max_rss_bytes is not None and 200 * 1024**2 < report.max_rss_bytes < 1024**3
        assert report.cpu_seconds is not None and report.cpu_seconds > 0.01

    async def test_what_a_grandchild_used_is_reported_too(self, driver: Driver, make_spec: MakeSpec) -> None:
        code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'len(bytes(b\"x\") * 200 * 1024**2)'])"
        report = await (await driver.launch(make_spec(code))).wait()
        assert report.max_rss_bytes is not None and report.max_rss_bytes > 200 * 1024**2

    async def test_twenty_runs_at_once(self, driver: Driver, make_spec: MakeSpec) -> None:
        specs = [make_spec(f"import sys; print({i}); sys.exit({i})") for i in range(20)]
        handles = await asyncio.gather(*(driver.launch(spec) for spec in specs))
        reports = await asyncio.gather(*(handle.wait() for handle in handles))
        assert [report.returncode for report in reports] == list(range(20))
        assert [report.tail for report in reports] == [(str(i),) for i in range(20)]
        assert len({handle.pid for handle in handles}) == 20

    # ---- what it is given ----

    async def test_the_environment_is_exactly_the_given_one(
        self, driver: Driver, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OF_THE_WORKER", "must not be inherited")
        code = """
            import json, os, subprocess
            print(json.dumps(dict(os.environ)))
            print(subprocess.run(["env"], capture_output=True).stdout.count(b"OF_THE_WORKER"))
        """
        spec = make_spec(code, SPACES="a b  c", LINES="two\nlines", EMPTY="", LATIN="b\udcfcro")
        report = await (await driver.launch(spec)).wait()
        seen = json.loads(report.tail[0])
        seen.pop("LC_CTYPE", None)  # which Python sets by itself in the C locale
        assert seen == {name: value for name, value in spec.env.items() if name != "LC_CTYPE"}
        assert report.tail[1] == "0"

    async def test_folder_and_arguments(self, driver: Driver, make_spec: MakeSpec) -> None:
        code = """
            import os, sys
            print(os.getcwd() == os.environ["EXPECTED"], sys.path[0] == os.getcwd(), sys.argv[1:], __name__)
            print(os.path.basename(sys.argv[0]), repr(sys.stdin.read()))
        """
        spec = make_spec(code, argv=("python", "-m", "conformance_probe", "--lr", "0.1 0.2"))
        spec.env["EXPECTED"] = str(spec.cwd)
        report = await (await driver.launch(spec)).wait()
        assert report.tail == ("True True ['--lr', '0.1 0.2'] __main__", "conformance_probe.py ''")

    async def test_it_is_bound_to_its_cores(self, driver: Driver, make_spec: MakeSpec) -> None:
        core = max(os.sched_getaffinity(0))
        handle = await driver.launch(make_spec("import os; print(os.sched_getaffinity(0))", cpus=(core,)))
        assert (await handle.wait()).tail == (f"{{{core}}}",)

    async def test_cores_that_are_not_there_are_a_warning(self, driver: Driver, make_spec: MakeSpec) -> None:
        report = await (await driver.launch(make_spec("print('ran')", cpus=(4000,)))).wait()
        assert report.returncode == 0
        assert "not bound to cores [4000]" in report.tail[0] and report.tail[1] == "ran"

    async def test_a_program_that_is_not_there_is_a_launch_error(self, driver: Driver, make_spec: MakeSpec) -> None:
        with pytest.raises(LaunchError, match="no-such-program"):
            await driver.launch(make_spec("", argv=("no-such-program", "--really")))

    async def test_a_folder_that_is_not_there_is_a_launch_error(self, driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("")
        for path in spec.cwd.iterdir():
            path.unlink()
        spec.cwd.rmdir()
        with pytest.raises(LaunchError, match=f"its working directory cannot be entered.*{spec.cwd.name}"):
            await driver.launch(spec)

    async def test_an_environment_that_cannot_be_is_a_launch_error(self, driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("")
        spec.env["NUL"] = "a\0b"
        with pytest.raises(LaunchError, match="null byte"):
            await driver.launch(spec)

    # ---- output ----

    async def test_output_is_kept_in_order(
        self, driver: Driver, make_spec: MakeSpec, echoed: list[tuple[str, str]]
    ) -> None:
        code = """
            import os, subprocess, sys
            print("one", flush=True)
            print("two", file=sys.stderr, flush=True)
            os.write(1, b"three\\n")
            subprocess.run(["echo", "four"])
            print("five, without an end", end="")
        """
        report = await (await driver.launch(make_spec(code))).wait()
        assert report.tail == ("one", "two", "three", "four", "five, without an end")
        assert echoed == [("run 1", line) for line in report.tail]

    async def test_large_output_is_repeated_whole(
        self, driver: Driver, make_spec: MakeSpec, echoed: list[tuple[str, str]]
    ) -> None:
        report = await (await driver.launch(make_spec("for i in range(100_000): print(i, 'x' * 80)"))).wait()
        assert [line.split()[0] for _, line in echoed] == [str(i) for i in range(100_000)]
        assert report.tail == tuple(line for _, line in echoed[-20:])

    # ---- stopping ----

    async def test_stop_lets_the_run_end_by_itself(self, driver: Driver, make_spec: MakeSpec) -> None:
        code = """
            import signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(7)))
            open("ready", "w").close()
            time.sleep(600)
        """
        spec = make_spec(code)
        handle = await driver.launch(spec)
        await until((spec.cwd / "ready").exists)
        await handle.stop(grace_seconds=60)
        report = await handle.wait()
        assert (report.returncode, report.tail) == (7, ("saved",))
        await handle.stop(grace_seconds=60)  # again, when it is over: nothing to do

    async def test_stop_leaves_nothing_behind(self, driver: Driver, make_spec: MakeSpec) -> None:
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(600)"
        spec = make_spec(LEAVE_GRANDCHILDREN + ignore)
        handle = await driver.launch(spec)
        await until((spec.cwd / "ready").exists)
        pids = [int((spec.cwd / name).read_text()) for name in ("child", "orphan")]
        assert all(self.still_alive(pid) for pid in pids)
        await asyncio.gather(handle.stop(grace_seconds=0.1), handle.stop(grace_seconds=0.1))
        assert not any(self.still_alive(pid) for pid in pids)
        assert (await handle.wait()).returncode == -9

    async def test_an_end_leaves_nothing_behind(self, driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec(LEAVE_GRANDCHILDREN)
        report = await (await driver.launch(spec)).wait()
        assert report.returncode == 0
        assert not any(self.still_alive(int((spec.cwd / name).read_text())) for name in ("child", "orphan"))

    # ---- adoption ----

    async def _running(self, driver: Driver, make_spec: MakeSpec) -> tuple[LaunchSpec, RunHandle]:
        code = """
            import os, time
            open("ready", "w").close()
            while not os.path.exists("end"):
                time.sleep(0.02)
            print("ended by itself")
            raise SystemExit(5)
        """
        spec = make_spec(code)
        handle = await driver.launch(spec)
        await until((spec.cwd / "ready").exists)
        return spec, handle

    async def test_a_running_launch_is_adopted(self, driver: Driver, later_driver: Driver, make_spec: MakeSpec) -> None:
        spec, handle = await self._running(driver, make_spec)
        await driver.close()
        adopted = await later_driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        assert (adopted.pid, adopted.run_id, adopted.warm) == (handle.pid, handle.run_id, handle.warm)
        (spec.cwd / "end").touch()
        report = await adopted.wait()
        assert (report.returncode, report.tail) == (5, ("ended by itself",))

    async def test_an_adopted_launch_is_stopped(
        self, driver: Driver, later_driver: Driver, make_spec: MakeSpec
    ) -> None:
        spec, _ = await self._running(driver, make_spec)
        await driver.close()
        adopted = await later_driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        await adopted.stop(grace_seconds=60)
        assert (await adopted.wait()).returncode == -15
        assert not self.still_alive(adopted.pid)

    async def test_an_ended_launch_is_adopted(self, driver: Driver, later_driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("print('done'); raise SystemExit(6)")
        before = await (await driver.launch(spec)).wait()
        adopted = await later_driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        assert await adopted.wait() == before
        assert before.returncode == 6
        await adopted.stop(grace_seconds=0)

    async def test_a_launch_that_never_started_is_not_adopted_and_can_never_start(
        self, driver: Driver, later_driver: Driver, make_spec: MakeSpec
    ) -> None:
        spec = make_spec("open('ran', 'w').close()")
        assert await later_driver.adopt(spec.run_id, spec.run_dir) is None
        assert await later_driver.adopt(spec.run_id, spec.run_dir) is None
        with pytest.raises(LaunchError):
            await driver.launch(spec)
        assert not (spec.cwd / "ran").exists()

    async def test_a_launch_starts_once(self, driver: Driver, later_driver: Driver, make_spec: MakeSpec) -> None:
        spec = make_spec("print('ran')")
        outcomes = await asyncio.gather(
            *(one.launch(spec) for one in (driver, later_driver, driver)), return_exceptions=True
        )
        handles = [outcome for outcome in outcomes if isinstance(outcome, RunHandle)]
        assert len(handles) == 1
        assert all(isinstance(outcome, (RunHandle, LaunchError)) for outcome in outcomes)
        assert (await handles[0].wait()).tail == ("ran",)
