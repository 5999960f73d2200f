"""Which tests belong to `make test`, which to `make test-all`, and what a run says of those that it left out.

What a test needs beside Python is told by :mod:`tests.components`. Everything that needs something is ``full``, as is
what takes long. The end of a run names what it left out, and for want of which component.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.components import COMPONENTS, needed, require_all
from tests.lifetimes import SERVERS

_LONG = "long runs"
_needs = pytest.StashKey[list[str]]()
_left_out = pytest.StashKey[Counter[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs a component or a server, and begin with what takes long.

    A wrapper, so that it comes before whoever chooses by marks, and before pytest-xdist, which reads the groups.
    """
    for item in items:
        item.stash[_needs] = needed(item)
        if item.stash[_needs]:
            item.add_marker(pytest.mark.full)
        if _asks_a_server(item):
            item.add_marker(pytest.mark.slow)
        if not item.get_closest_marker("xdist_group") and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_takes_long, reverse=True)
    yield


def _takes_long(item: pytest.Item) -> int:
    """What takes longer has a higher number, so that no process is left with it alone at the end."""
    return 2 * any(COMPONENTS[name].shared for name in item.stash[_needs]) + _asks_a_server(item)


def _asks_a_server(item: pytest.Item) -> bool:
    """Whether the test uses a Prefect server."""
    return bool(SERVERS & frozenset(getattr(item, "fixturenames", ())))


def _group(item: pytest.Item) -> str | None:
    """Tests of one group run in one process of pytest-xdist, one after the other; None: the test may run anywhere.

    What a component starts is started once. Tests of a file share its fixtures; only those with a worker of their own
    on the server of the process share nothing.
    """
    shared = next((name for name in item.stash[_needs] if COMPONENTS[name].shared), None)
    if shared is not None:
        return shared
    own_worker = _asks_a_server(item) and "serving" not in getattr(item, "fixturenames", ())
    return None if own_worker else str(item.path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the machine cannot run; where CI is set, that is a failure."""
    require_all(item.stash[_needs])


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out because it needs more than Python."""
    for item in items:
        if item.get_closest_marker("full"):
            titles = [COMPONENTS[name].title for name in item.stash[_needs]] or [_LONG]
            item.config.stash.setdefault(_left_out, Counter())[" and ".join(titles)] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every process of pytest-xdist has left out the same; the last word counts."""
    if told := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[_left_out] = Counter(json.loads(told))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that sums up; and fail where CI is set and a test was skipped: there, everything must run."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = json.dumps(session.config.stash.get(_left_out, Counter()))
    if _skipped_in_ci(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out and why; and why the run fails where CI is set and a test was skipped."""
    left_out = config.stash.get(_left_out, Counter())
    if left_out and "not full" in config.option.markexpr:
        terminalreporter.section("left out; `make test-all` runs them where the components are installed")
        for title, count in left_out.most_common():
            terminalreporter.write_line(f"{count:5} {'' if title == _LONG else 'for want of '}{title}")
    if skipped := _skipped_in_ci(config):
        terminalreporter.write_line(
            f"{skipped} skipped, and CI is set, where everything must run: see the reasons above.", red=True
        )


def _skipped_in_ci(config: pytest.Config) -> int:
    """How many tests or modules were skipped; 0 where CI is not set."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", ())) if reporter and os.environ.get("CI") else 0
