"""What tests of one process share ends as soon as the next test needs nothing of its kind.

A Prefect server that nobody asks takes 3 % of a core, and those of three processes would go on to the end of all tests.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.components import COMPONENTS, needed

SERVERS = frozenset({"sandbox", "wide_sandbox"})
_of_component = {fixture: name for name, one in COMPONENTS.items() if one.shared for fixture in one.fixtures}
_Started = dict[str, tuple[pytest.FixtureDef[Any], Any]]
_started = pytest.StashKey[_Started]()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Remember what was started for all tests of this process."""
    result = yield
    name = fixturedef.argname
    if fixturedef.scope == "session" and (name in SERVERS or name in _of_component):
        request.config.stash.setdefault(_started, {})[name] = fixturedef, request
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """End what the next test does not need, with whatever uses it. It begins anew where a later one needs it."""
    yield
    started = item.config.stash.get(_started, _Started())
    if nextitem is not None:
        for name in [name for name in started if not _needs(nextitem, name)]:
            fixture, request = started.pop(name)
            fixture.finish(request)


def _needs(item: pytest.Item, name: str) -> bool:
    return name in getattr(item, "fixturenames", ()) or _of_component.get(name) in needed(item)
