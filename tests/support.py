"""Helpers that several test modules share."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(part: float) -> int:
    """So many times what the chosen Hypothesis profile tries: a property that costs more is tried less often.

    A number of its own would stay what it is in the long runs too.
    """
    return max(5, round(settings().max_examples * part))


def process_number() -> int:
    """Which of pytest-xdist's processes this is, from 0 on: names and networks of what it starts have it in them."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
