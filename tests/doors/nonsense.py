"""What stands before a door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.support import examples

Test = TypeVar("Test", bound=Callable[..., Any])
_LONG = 100  # examples of the profile of the long runs

_MANY = settings(
    max_examples=200 if settings().max_examples >= _LONG else examples(0.6),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def door(test: Test) -> Test:
    """A property of what comes from outside: `make test-all` has it again, with more examples."""
    marked: Test = pytest.mark.door(_MANY(test))
    return marked


texts = st.text(max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "0",
        "-1",
        "1e999",
        "nan",
        "{{ gpus }}",
        "{{",
        "~nobody/x",
        "\0",
        "\ud800",
        "/",
        "..",
        "6GiB",
        "9" * 60,
        "a=b",
    ]
)
numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 1e308])
scalars = st.none() | st.booleans() | numbers | texts
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


def tables(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, and at times another one, with any values."""
    return st.dictionaries(st.sampled_from(names) | texts, values, max_size=8)
