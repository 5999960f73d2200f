"""Helpers that several test modules share."""

from __future__ import annotations

import os
from pathlib import Path

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


def traces_folder() -> Path:
    """Folder of published job traces: ``PREFECT_GPU_TRACES``, or ``shared/traces`` beside the checkout.

    A test that asks for it is skipped where there is none, and fails in CI (see ``require``).
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "traces"
    folder = Path(os.environ.get("PREFECT_GPU_TRACES") or beside)
    require(f"a folder of published traces at {folder} (set PREFECT_GPU_TRACES)", folder.is_dir())
    return folder
