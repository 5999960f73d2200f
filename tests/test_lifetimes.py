"""What tests share ends with the last of a row of tests that need it."""

from __future__ import annotations

import pytest

SHARED = """
import pytest

@pytest.fixture(scope="session")
def sandbox():
    print("begins")
    yield
    print("ends")

@pytest.fixture(scope="module")
def pool(sandbox):
    yield
    print("left")

def test_1(pool): print("first")
def test_2(sandbox): print("second")
def test_3(): print("third")
def test_4(pool): print("fourth")
"""


def test_a_server_ends_before_a_test_that_needs_none_and_what_uses_it_ends_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SHARED)
    done = pytester.runpytest_inprocess("-q", "-s", "-p", "tests.lifetimes", "-p", "no:xdist", "-p", "no:asyncio")
    done.assert_outcomes(passed=4)
    said = [line.strip(".") for line in done.outlines]
    assert [word for word in said if word.isalpha()] == [
        *("begins", "first", "second", "left", "ends"),
        "third",
        *("begins", "fourth", "left", "ends"),
    ]
