"""What holds for all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from prefect_gpu.lab import Lab
from tests.postgres import PostgresServer, missing, postgres_server
from tests.support import require

settings.register_profile("ours", deadline=None)  # nothing is asserted on time
settings.load_profile("ours")

_GIVEN = frozenset(os.environ)
# Those that compare step rates, or that have dozens of processes of their own.
_ALONE = tuple(
    Path(__file__).parent / name
    for name in (
        "demo",
        "live/test_chaos.py",
        "live/test_cores.py",
        "live/test_demotion.py",
        "live/test_preemption.py",
        "live/test_prescheduling.py",
        "live/test_sharing.py",
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a server is left out of `make test-quick`; what others would disturb gets the machine alone."""
    alone = {path: _is_alone(path) for path in {item.path for item in items}}
    for item in items:
        if alone[item.path]:
            item.add_marker(pytest.mark.alone)
        if isinstance(item, pytest.Function) and "server" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only those are asked for, don't import all others."""
    wanted = config.option.markexpr != "alone" or collection_path.suffix != ".py" or _is_alone(collection_path)
    return None if wanted else True


def _is_alone(path: Path) -> bool:
    return any(path.is_relative_to(one) for one in _ALONE)


def pytest_collection_finish() -> None:
    """What has been imported stays: the collector of garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Lab]:
    """Three Engines in one Swarm: see :mod:`tests.cluster`."""
    from prefect_gpu import lab_python
    from tests.cluster import started

    lacking = lab_python.missing()
    require(f"what Docker Engines of our own need ({', '.join(lacking)})", not lacking)
    with started() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server."""
    lacking = missing()
    require(", ".join(lacking), not lacking)
    with postgres_server() as server:
        yield server


def pytest_runtest_setup() -> None:
    """Give the processes that a test starts the environment that the tests were given.

    Importing scikit-learn sets variables for OpenMP (KMP_...), and a driver rightly takes them for a user's wish.
    """
    for name in os.environ.keys() - _GIVEN:
        if name.startswith("KMP_"):
            del os.environ[name]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why the tests fail where CI is set and one was skipped."""
    if skipped := skipped_in_ci(terminalreporter.config):
        terminalreporter.write_line(
            f"{skipped} skipped, and CI is set, where everything must run: see the reasons above.", red=True
        )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test fails the tests where CI is set: there, everything that tests need is installed."""
    if skipped_in_ci(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def skipped_in_ci(config: pytest.Config) -> int:
    """How many tests or modules were skipped; 0 where CI is not set."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", ())) if reporter and os.environ.get("CI") else 0
