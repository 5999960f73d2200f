"""A database of each kind for the tests of the history."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def history_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'folder' / 'history.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = "test_" + os.urandom(6).hex()
    yield server.make(name)
    server.drop(name)
