"""Helpers that several test modules share."""

from __future__ import annotations

import os

import pytest


def require(component: str, found: object) -> None:
    """Skip the test where a component of the machine is missing; fail instead where CI promises to have it.

    Args:
        component: What is needed, as a person would say it: ``"a PostgreSQL server"``.
        found: Whatever shows that it is there; anything false means that it is not.

    Example:
        >>> require("a C compiler", shutil.which("gcc"))
    """
    if found:
        return
    if os.environ.get("CI"):
        pytest.fail(f"{component} is missing, and CI is set: this test must not be skipped there.", pytrace=False)
    pytest.skip(f"{component} is not installed on this machine")
