"""Makes the golden record, and says where a profile says something else now: see :mod:`tests.golden`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_gpu.scheduling.profiles import all_profiles
from tests.golden.lines import digest, heard, letters
from tests.golden.logs import LOGS

FOLDER = Path(__file__).parent
_SHOWN = 3  # lines before and after the first difference


@dataclass(frozen=True)
class Kept:
    """What is kept of one profile in one log."""

    digest: str
    letters: str


def said(log: str, profile: str) -> list[str]:
    """The lines that a profile says in a log; the last one tells if the world could not go on with it."""
    with heard() as lines:
        try:
            LOGS[log].play(profile)
        except (KeyError, ValueError, RuntimeError) as error:  # a world knows no such placement, or no such job
            lines.append(f"the world cannot go on: {type(error).__name__}")
    return lines


def kept(log: str) -> dict[str, Kept]:
    """The record of a log, by profile; empty if there is none."""
    path = FOLDER / f"{log}.json"
    found: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    record: dict[str, Kept] = {}
    for profile, content in found.items():
        text = found.get(content, content)  # the name of a profile that says the same
        record[profile] = Kept(*text.split(" "))
    return record


def keep(log: str, record: dict[str, Kept]) -> None:
    """Write the record of a log: a line for each profile, the lines of equal ones only once."""
    first: dict[Kept, str] = {}
    shown = {}
    for profile, one in sorted(record.items()):
        shown[profile] = first.get(one) or f"{one.digest} {one.letters}"
        first.setdefault(one, profile)
    (FOLDER / f"{log}.json").write_text(json.dumps(shown, indent=0) + "\n", "utf-8")


def difference(log: str, profile: str, lines: Sequence[str], was: Kept | None) -> str | None:
    """Where a profile says something else than is kept, in words; None if it does not."""
    if was is None:
        return f"{profile} in {log}: nothing is kept of it. Is it new? `python -m tests.golden.record --update`"
    if digest(lines) == was.digest:
        return None
    now = letters(lines)
    at = next(
        (n for n, (a, b) in enumerate(zip(was.letters, now, strict=False)) if a != b), min(len(now), len(was.letters))
    )
    words = [
        f"{profile} in {log}: {len(was.letters)} lines are kept, and it says {len(lines)} now. The first difference is "
        f"line {at + 1}, or a line or two before it:"
    ]
    for number in range(max(0, at - _SHOWN), min(len(lines), at + _SHOWN + 1)):
        words.append(f"  {'→' if number == at else ' '} {number + 1:5} {lines[number]}")
    if at >= len(lines):
        words.append("  → nothing more is said")
    words.append("  `--dump` here and on the commit before shows what it was.")
    return "\n".join(words)


def check(logs: Iterable[str], profiles: Iterable[str]) -> Iterator[str]:
    """What is different from the record, one text for each profile and log."""
    names = list(profiles)
    for log in logs:
        record = kept(log)
        for profile in names:
            found = difference(log, profile, said(log, profile), record.get(profile))
            if found is not None:
                yield found


def update(logs: Iterable[str], profiles: Iterable[str]) -> None:
    """Keep what is said now."""
    names = list(profiles)
    for log in logs:
        record = {profile: one for profile, one in kept(log).items() if profile in all_profiles()}
        for profile in names:
            lines = said(log, profile)
            record[profile] = Kept(digest(lines), letters(lines))
        keep(log, record)


def main() -> int:
    """The command; see the package."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with the record; ends with code 1 on a difference")
    what.add_argument("--update", action="store_true", help="keep what is said now")
    what.add_argument("--dump", action="store_true", help="print the lines")
    parser.add_argument("--only", metavar="PROFILE", action="append", help="only this profile; may be given repeatedly")
    parser.add_argument("--log", action="append", choices=sorted(LOGS), help="only this log; may be given repeatedly")
    asked = parser.parse_args()
    profiles, logs = asked.only or sorted(all_profiles()), asked.log or sorted(LOGS)
    unknown = sorted(set(profiles) - set(all_profiles()))
    if unknown:
        parser.error(f"--only {unknown[0]} is none of {', '.join(sorted(all_profiles()))}")
    if asked.update:
        update(logs, profiles)
    if asked.dump:
        for log in logs:
            for profile in profiles:
                print(*(f"{log} {profile} {one}" for one in said(log, profile)), sep="\n")
    different = 0
    for words in check(logs, profiles) if asked.check else ():
        different += 1
        print(words)
    if asked.check:
        print(f"{len(logs)} logs, {len(profiles)} profiles: {different or 'no'} differences.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
