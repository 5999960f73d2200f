"""A run cannot tell a warm start from a cold one; where it could, it is started cold, and that is said."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.runtime.drivers.conformance import MakeSpec, alive, until
from prefect_gpu.runtime.drivers.fork_compatibility import unlike_warm
from prefect_gpu.runtime.drivers.process import ProcessDriver

LOGGER = logging.getLogger("test.driver")
MakeDriver = Callable[..., Any]
# All that a program could look at to find out how it was started.
FACTS = """
import json, os, signal, sys, threading, locale, gc
main = sys.modules["__main__"]
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "environ": dict(os.environ),
    "cwd": os.getcwd(),
    "argv": sys.argv, "orig_argv": sys.orig_argv, "executable": sys.executable, "prefix": sys.prefix,
    "path": sys.path, "flags": str(sys.flags), "bytecode": sys.dont_write_bytecode,
    "signals": {int(s): str(signal.getsignal(s)) for s in signal.valid_signals()},
    "dispositions": {name: status[name].strip() for name in ("SigBlk", "SigIgn")},
    "umask": status["Umask"].strip(),
    "fds": {n: os.readlink(f"/proc/self/fd/{n}") for n in "012"},
    # Newer libffi keeps its own file open.
    "more_fds": [n for n in range(3, 256) if os.path.exists(f"/proc/self/fd/{n}")
                 and "/libffi." not in os.readlink(f"/proc/self/fd/{n}")],
    "blocking": [os.get_blocking(n) for n in range(3)],
    "streams": [[s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(), s.isatty(),
                 type(s.buffer).__name__] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "main": sorted(vars(main)), "spec": main.__spec__.name, "file": main.__file__, "is_main": vars(main) is globals(),
    "threads": [str(t.name) for t in threading.enumerate()], "tasks": len(os.listdir("/proc/self/task")),
    "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
    "session_of_parent": os.getsid(os.getppid()) == os.getppid(),
    "locale": locale.setlocale(locale.LC_CTYPE),
    "encoding": [sys.getfilesystemencoding(), locale.getpreferredencoding()],
    "gc": [gc.isenabled(), gc.get_threshold()], "recursion": sys.getrecursionlimit(), "hooks": str(sys.excepthook),
    "marked": "PREFECT_GPU_RUN_ID=" + os.environ["PREFECT_GPU_RUN_ID"]
              in open("/proc/self/environ").read().split(chr(0)),
}))
"""


@pytest.fixture
async def make_driver() -> AsyncIterator[MakeDriver]:
    drivers: list[ProcessDriver] = []

    async def make(**options: Any) -> ProcessDriver:
        driver = ProcessDriver(**{"warm": True, "echo": lambda label, line: None, "logger": LOGGER, **options})
        drivers.append(driver)
        await driver.start()
        return driver

    yield make
    for driver in drivers:
        await driver.close()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PYTHONPATH of the worker, and so of the warm interpreter and of the runs."""
    folder = tmp_path / "library"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    return folder


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def ends(driver: ProcessDriver, spec: LaunchSpec) -> tuple[bool, int | None, tuple[str, ...]]:
    handle = await driver.launch(spec)
    report = await handle.wait()
    return handle.warm, report.returncode, report.tail


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "0", "TZ": "Asia/Tokyo"},
        {"PYTHONPATH": "relative:/nowhere:"},
    ],
    ids=["plain", "applied", "path"],
)
async def test_a_run_cannot_tell(
    make_driver: MakeDriver, make_spec: MakeSpec, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    seen = {}
    for warm in (False, True):
        driver = await make_driver(warm=warm, preload=["json", "subprocess", "asyncio", "locale"])
        spec = make_spec(FACTS, argv=("python", "-m", "conformance_probe", "--flag"), **env)
        was_warm, returncode, tail = await ends(driver, spec)
        assert (was_warm, returncode) == (warm, 0), tail
        # Its entry in sys.flags cannot be changed after the start; sys.dont_write_bytecode, which counts, is.
        text = re.sub(r"(dont_write_bytecode)=\d", r"\1", tail[-1])
        text = text.replace(str(spec.cwd), "CWD").replace(str(spec.run_dir), "RUN").replace(spec.run_id, "ID")
        seen[warm] = json.loads(text)
    # The one difference: how the program was called in full, which a shell would have looked up in PATH.
    assert seen[True].pop("orig_argv")[1:] == seen[False].pop("orig_argv")[1:]
    assert seen[True] == seen[False]


async def test_each_run_draws_its_own_random_numbers(make_driver: MakeDriver, make_spec: MakeSpec) -> None:
    driver = await make_driver(preload=["random", "uuid", "numpy.random"])
    code = "import random, uuid, numpy; print(random.random(), uuid.uuid4(), numpy.random.rand())"
    draws = [await ends(driver, make_spec(code)) for _ in range(3)]
    assert all(warm for warm, _, _ in draws)
    for i in range(3):
        assert len({tail[0].split()[i] for _, _, tail in draws}) == 3


async def test_the_hook_runs_in_the_environment_of_the_run_and_before_it(
    make_driver: MakeDriver, make_spec: MakeSpec, library: Path
) -> None:
    hook = "import os, sys\ndef hook():\n    print('hook', os.environ['COLOUR'], os.getcwd() == sys.path[0])\n"
    (library / "a_hook.py").write_text(hook)
    driver = await make_driver(after_fork="a_hook:hook")
    assert await ends(driver, make_spec("print('run')", COLOUR="red")) == (True, 0, ("hook red True", "run"))


async def test_a_hook_that_fails_fails_the_run(make_driver: MakeDriver, make_spec: MakeSpec, library: Path) -> None:
    (library / "a_hook.py").write_text("def hook():\n    raise ValueError('no profile')\n")
    driver = await make_driver(after_fork="a_hook:hook")
    _, returncode, tail = await ends(driver, make_spec("print('run')"))
    assert (returncode, tail[-1]) == (1, "ValueError: no profile")
    assert "run" not in tail


async def test_a_preloaded_module_can_be_the_program(
    make_driver: MakeDriver, make_spec: MakeSpec, library: Path
) -> None:
    (library / "a_program.py").write_text("print(__name__)\n")
    driver = await make_driver(preload=["a_program"])
    assert await ends(driver, make_spec("", argv=("python", "-m", "a_program"))) == (True, 0, ("__main__",))


async def test_multiprocessing_works_in_a_warm_run(make_driver: MakeDriver, make_spec: MakeSpec) -> None:
    code = """
        import multiprocessing as mp
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                with mp.get_context(method).Pool(2) as pool:
                    print(pool.map(double, [1, 2]))
    """
    driver = await make_driver(preload=["multiprocessing.pool"])
    assert await ends(driver, make_spec(code)) == (True, 0, ("[2, 4]",) * 3)


@pytest.mark.parametrize(
    ("env", "files", "reason"),
    [
        ({"PYTHONHASHSEED": "1"}, {}, "PYTHONHASHSEED only acts when an interpreter starts"),
        ({"PYTHONOPTIMIZE": "1"}, {}, "PYTHONOPTIMIZE only acts"),
        ({"PYTHONWARNINGS": "error"}, {}, "PYTHONWARNINGS only acts"),
        ({"LD_LIBRARY_PATH": "/somewhere"}, {}, "LD_LIBRARY_PATH only acts"),
        ({"MALLOC_ARENA_MAX": "2"}, {}, "MALLOC_ARENA_MAX only acts"),
        ({"LC_ALL": "C"}, {}, "LC_ALL only acts"),
        ({}, {"textwrap.py": ""}, "textwrap.py takes the place of the preloaded module textwrap"),
        ({}, {"textwrap/__init__.py": ""}, "textwrap/__init__.py takes the place"),
        ({"PYTHONPATH": "ahead"}, {"ahead/textwrap.py": ""}, "ahead/textwrap.py takes the place"),
        ({"PYTHONPATH": "ahead"}, {"ahead/sitecustomize.py": ""}, "sitecustomize.py only acts"),
    ],
)
async def test_a_run_that_could_tell_starts_cold(
    make_driver: MakeDriver,
    make_spec: MakeSpec,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    files: dict[str, str],
    reason: str,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    driver = await make_driver(preload=["textwrap"])
    for _ in range(2):
        spec = make_spec("print('ran')", **env)
        for name, content in files.items():
            (spec.cwd / name).parent.mkdir(exist_ok=True)
            (spec.cwd / name).write_text(content)
        warm, returncode, tail = await ends(driver, spec)
        assert (warm, returncode, tail[-1:]) == (False, 0, ("ran",))
    (first, *more) = warnings_in(caplog)
    assert reason in first and "started cold" in first
    assert not more or files  # the same reason is a warning once; the folders differ, and so do their reasons


@pytest.mark.parametrize(
    ("env", "files"),
    [
        ({"OMP_NUM_THREADS": "1"}, {}),  # nothing that reads it is loaded
        ({}, {"textwrap/data.csv": ""}),  # a folder of data is no package
        ({}, {"json.txt": ""}),
        ({"PYTHONPATH": "ahead"}, {"ahead/mine.py": ""}),
        ({"HOME": "/tmp", "TZ": "UTC", "WANDB_MODE": "offline"}, {}),
    ],
)
async def test_a_run_that_could_not_tell_starts_warm(
    make_driver: MakeDriver,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    files: dict[str, str],
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    driver = await make_driver(preload=["textwrap", "json"])
    spec = make_spec("print('ran')", **env)
    for name, content in files.items():
        (spec.cwd / name).parent.mkdir(exist_ok=True)
        (spec.cwd / name).write_text(content)
    assert await ends(driver, spec) == (True, 0, ("ran",))


async def test_a_relative_entry_of_the_workers_path_is_the_runs_own_folder(
    make_driver: MakeDriver, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is another folder for each run, and the warm interpreter has loaded nothing from the worker's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".")
    driver = await make_driver(preload=["json"])
    code = "import mine, os, sys; print(mine.NAME, sys.path.count(os.getcwd()), os.environ['WORKERS'] in sys.path)"
    spec = make_spec(code, WORKERS=str(tmp_path))
    (spec.cwd / "mine.py").write_text("NAME = 'own'")
    assert await ends(driver, spec) == (True, 0, ("own 2 False",))


async def test_a_run_that_lacks_what_the_warm_interpreter_has_loaded_starts_cold(
    make_driver: MakeDriver, make_spec: MakeSpec, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (library / "theirs.py").write_text("VERSION = 1")
    driver = await make_driver(preload=["theirs"])
    code = "try:\n    import theirs\nexcept ImportError:\n    print('none')"
    assert await ends(driver, make_spec(code, PYTHONPATH="")) == (False, 0, ("none",))
    assert "is on the warm interpreter's PYTHONPATH, but not on the run's" in warnings_in(caplog)[0]


async def test_the_thread_count_matters_once_a_native_library_is_loaded(
    make_driver: MakeDriver, make_spec: MakeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await make_driver(preload=["numpy"])
    code = "import numpy; print((numpy.ones((64, 64)) @ numpy.ones((64, 64)))[0, 0])"
    assert await ends(driver, make_spec(code)) == (True, 0, ("64.0",))
    assert await ends(driver, make_spec(code, OMP_NUM_THREADS="1")) == (False, 0, ("64.0",))
    assert "OMP_NUM_THREADS differs from the warm interpreter's, which has loaded numpy" in warnings_in(caplog)[0]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), name='mine').start()", "mine"),
        ("import socket\nheld = socket.socketpair()", "socket:"),
        ("import select\nheld = select.epoll()", "eventpoll"),
    ],
    ids=["thread", "socket", "epoll"],
)
async def test_modules_that_do_not_survive_a_fork_make_every_start_cold(
    make_driver: MakeDriver,
    make_spec: MakeSpec,
    library: Path,
    caplog: pytest.LogCaptureFixture,
    code: str,
    reason: str,
) -> None:
    (library / "unfit.py").write_text(code)
    driver = await make_driver(preload=["unfit"])
    for _ in range(2):
        assert await ends(driver, make_spec("print('ran')")) == (False, 0, ("ran",))
    assert any("No warm starts" in warning and reason in warning for warning in warnings_in(caplog))


async def test_modules_that_cannot_be_imported_are_left_out(
    make_driver: MakeDriver, make_spec: MakeSpec, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (library / "exits.py").write_text("raise SystemExit(3)")
    driver = await make_driver(preload=["no_such_module", "exits", "json"])
    assert (await ends(driver, make_spec("print('ran')")))[0]
    assert ["no_such_module" in w or "exits" in w for w in warnings_in(caplog)] == [True, True]


async def test_a_changed_library_is_loaded_anew(
    make_driver: MakeDriver, make_spec: MakeSpec, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (library / "theirs.py").write_text("VERSION = 1")
    driver = await make_driver(preload=["theirs"])
    code = "import theirs; print(theirs.VERSION)"
    assert await ends(driver, make_spec(code)) == (True, 0, ("1",))
    (library / "theirs.py").write_text("VERSION = 'two'")
    assert await ends(driver, make_spec(code)) == (False, 0, ("two",))
    assert "theirs.py has changed since it was preloaded" in warnings_in(caplog)[0]
    assert await ends(driver, make_spec(code)) == (True, 0, ("two",))


async def zygote_of(driver: ProcessDriver) -> int:
    warm = driver._warm
    assert warm is not None
    await warm._settled.wait()
    assert warm._process is not None
    return warm._process.pid


async def test_a_warm_interpreter_that_dies_is_replaced_and_its_runs_go_on(
    make_driver: MakeDriver, make_spec: MakeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await make_driver()
    spec = make_spec("import os, time\nwhile not os.path.exists('end'): time.sleep(0.02)")
    handle = await driver.launch(spec)
    assert handle.warm
    first = await zygote_of(driver)
    os.kill(first, signal.SIGKILL)
    await until(lambda: any("died" in warning for warning in warnings_in(caplog)))
    assert await ends(driver, make_spec("print('ran')")) == (True, 0, ("ran",))
    assert await zygote_of(driver) != first
    (spec.cwd / "end").touch()
    assert (await handle.wait()).returncode == 0


async def test_launches_that_a_dying_interpreter_was_asked_for_start_once(
    make_driver: MakeDriver, make_spec: MakeSpec
) -> None:
    driver = await make_driver()
    zygote = await zygote_of(driver)
    specs = [make_spec("import os; print(os.getpid())") for _ in range(4)]
    os.kill(zygote, signal.SIGSTOP)  # so that it has been asked, and has not answered
    launches = [asyncio.create_task(driver.launch(spec)) for spec in specs]
    warm = driver._warm
    assert warm is not None
    await until(lambda: len(warm._pending) == len(specs))
    os.kill(zygote, signal.SIGKILL)
    for launch in asyncio.as_completed(launches):
        report = await (await launch).wait()
        assert report.returncode == 0 and len(report.tail) == 1


async def test_a_warm_interpreter_that_never_comes_up_is_given_up(
    make_driver: MakeDriver,
    make_spec: MakeSpec,
    library: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefect_gpu.runtime.drivers.warm._PAUSE_SECONDS", 0.01)
    (library / "crashes.py").write_text("import os; os._exit(9)")
    driver = await make_driver(preload=["crashes"])
    await until(lambda: any("No warm starts" in warning for warning in warnings_in(caplog)))
    assert await ends(driver, make_spec("print('ran')")) == (False, 0, ("ran",))


async def test_an_interpreter_that_takes_long_is_not_waited_for_long(
    make_driver: MakeDriver, make_spec: MakeSpec, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    until_told = "while not pathlib.Path(__file__).with_name('go').exists(): time.sleep(0.02)"
    (library / "slow.py").write_text(f"import time, pathlib\n{until_told}")
    driver = await make_driver(preload=["slow"], warm_patience_s=0.05)
    assert await ends(driver, make_spec("print('ran')")) == (False, 0, ("ran",))
    assert "still importing" in warnings_in(caplog)[0]
    (library / "go").touch()
    await zygote_of(driver)
    assert (await ends(driver, make_spec("print('ran')")))[0]


async def test_the_warm_interpreter_goes_with_its_driver(make_driver: MakeDriver, make_spec: MakeSpec) -> None:
    driver = await make_driver()
    zygote = await zygote_of(driver)
    assert supervisor.look(zygote) is not None
    await driver.close()
    assert not alive(zygote)


HERE = os.path.dirname(sys.executable)


@pytest.mark.parametrize(
    ("argv", "path", "reason", "expected_warm"),
    [
        (("python", "-m", "prefect.engine"), HERE, None, None),
        (("python3", "-m", "prefect.engine", "x"), f"/nowhere:{HERE}:/usr/bin", None, None),
        ((sys.executable, "-m", "prefect.engine"), "", None, None),
        (("python", "-m", "prefect.engine"), "/nowhere", "another interpreter", True),
        (("python", "-u", "-m", "prefect.engine"), HERE, "options come between", True),
        (("/somewhere/python", "-m", "prefect.engine"), HERE, "another interpreter", True),
        (("python", "train.py"), HERE, "is not `python -m", False),
        (("python", "-m"), HERE, "options", True),
        (("bash", "-c", "python -m x"), HERE, "is not `python -m", False),
    ],
)
def test_commands_that_can_be_warm(
    tmp_path: Path, argv: tuple[str, ...], path: str, reason: str | None, expected_warm: bool | None
) -> None:
    outcome = unlike_warm(argv, {"PATH": path}, tmp_path)
    if reason is None:
        assert outcome is None
    else:
        assert outcome is not None and reason in outcome[0] and outcome[1] is expected_warm


def test_a_link_out_of_the_virtual_environment_is_another_interpreter(tmp_path: Path) -> None:
    """The link leads to the same binary, but without the environment's packages."""
    (tmp_path / "python").symlink_to(sys.executable)
    in_venv = sys.prefix != sys.base_prefix
    assert (unlike_warm((str(tmp_path / "python"), "-m", "x"), {}, tmp_path) is not None) == in_venv
