"""Every profile says what it said when the record was made.

The whole record belongs to ``make test-all``, and needs the published traces; a sample of it needs neither.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.model.instructions import Hold, SetShare
from prefect_gpu.scheduling.profiles import all_profiles
from tests.golden.lines import MOST_DECISIONS, MOST_LINES, _cut, digest, letters, line
from tests.golden.logs import LOGS
from tests.golden.record import FOLDER, Kept, check, difference, kept, said
from tests.scheduling.kinds import KINDS


def marks(log: str) -> list[pytest.MarkDecorator]:
    """What is read from files needs them; and the logs share nothing, so that each may have a process of its own."""
    return [pytest.mark.xdist_group(log), *([pytest.mark.needs("traces")] if LOGS[log].traces else [])]


OF_ALIKE = ("deepshare", "deepshare-trace0", "mixes")  # are about what tells profiles of one composition apart


def to_hear(log: str) -> list[str]:
    """All profiles; of those that run the same code and said the same, only one, unless the log is about them."""
    record = kept(log) if log not in OF_ALIKE else {}
    again = {one for first, others in KINDS.items() for one in others if one in record and record[one] == record[first]}
    return sorted(set(all_profiles()) - again)


SAMPLE = ("events", "fscheduling", "liquid", "specon")


@pytest.mark.parametrize("log", SAMPLE)
def test_one_profile_of_each_composition_says_what_it_said(log: str) -> None:
    different = list(check([log], sorted(KINDS)))
    assert not different, "\n\n".join(different)


@pytest.mark.full
@pytest.mark.timeout(1200)  # the longest takes a minute on a quiet core
@pytest.mark.parametrize("log", [pytest.param(log, marks=marks(log)) for log in LOGS])
def test_every_profile_says_what_it_said(log: str) -> None:
    different = list(check([log], to_hear(log)))
    assert not different, "\n\n".join(different)


def test_every_profile_is_on_record_in_every_log() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(LOGS)
    for log in LOGS:
        assert set(kept(log)) == set(all_profiles()), log


def test_the_record_tells_profiles_apart() -> None:
    for profile in ("coda", "liquid-immediate", "specon", "f-scheduling", "deepshare", "priority", "drf", "hived"):
        assert any(kept(log)[profile].digest != kept(log)["fifo"].digest for log in LOGS), profile


def test_all_kinds_of_instructions_are_on_record() -> None:
    heard = (("events", "adaptive"), ("liquid", "liquid-immediate"), ("fscheduling", "f-scheduling"))
    verbs = {one.split(" ")[1] for log, profile in heard for one in said(log, profile)}
    assert verbs >= {"launch", "move", "stop", "open", "cores", "share", "finish"}


def test_the_first_difference_is_shown_with_its_line_time_and_job() -> None:
    lines = [f"{1000 * number} stop job-{number}" for number in range(400)]
    was = Kept(digest(lines), letters(lines))
    assert difference("specon", "fifo", lines, was) is None
    for at in (0, 200, 399):
        other = lines.copy()
        other[at] = f"{1000 * at} stop another"
        found = difference("specon", "fifo", other, was)
        assert found is not None and f"→ {at + 1:5} {1000 * at} stop another" in found
    shorter = difference("specon", "fifo", lines[:300], was)
    assert shorter is not None and "400 lines are kept, and it says 300 now" in shorter
    assert "nothing more is said" in shorter
    new = difference("specon", "new", lines, None)
    assert new is not None and "nothing is kept of it" in new


def test_words_are_not_in_the_lines_and_numbers_are() -> None:
    assert line(Hold("a", "devices", "all are in use"), 1.0) is None
    assert line(SetShare("a", 0.0625, "it has converged"), 1.5) == "1500 share a 62500"
    assert line(SetShare("a", 0.0625, "in other words"), 1.5) == "1500 share a 62500"


@given(st.integers(0, 10**9), st.sampled_from([1e3, 1e6]), st.floats(-1e-8, 1e-8))
def test_a_sum_that_is_a_little_different_is_the_same_number(parts: int, unit: float, noise: float) -> None:
    for half in (0.0, 0.5):
        value = (parts + half) / unit
        assert _cut(value + noise, unit) == _cut(value, unit)


def test_what_goes_on_for_ever_is_cut_at_the_same_line() -> None:
    assert MOST_LINES == 1500 and MOST_DECISIONS == 4000, "the record was made so; make it anew"
    first = said("coda", "las")
    assert first[-1] == "and so on" and len(first) <= MOST_LINES + 1
    assert said("coda", "las") == first
