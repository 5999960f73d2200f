"""The pages and what stands in boxes on them.

A box is run by a test, or says why not, in a comment above it that readers do not see::

    <!-- not run: it needs two machines, and tests/live/cluster has them -->
    <!-- not run (pip install): the environment of the tests has it -->

The second form is about those commands of the box that begin with these words; there may be several such lines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
COMMANDS = ("console", "bash")
"""Languages of boxes with commands."""

_BLOCK = re.compile(
    r"^(?P<comments>(?: *<!-- not run.*?-->\n)*)(?P<indent> *)```(?P<language>[\w-]*)\n(?P<body>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!-- not run(?: \((?P<some>.+?)\))?: (?P<why>.+?) -->")
_SAVED = re.compile(r"[Ss]ave (?:this|it) as `([\w.-]+)`")


class Block(NamedTuple):
    """What stands between two fences.

    Attributes:
        where: The page and the line, for messages.
        text: Without the indentation that it has in a list.
        reasons: Why it is not run, by how the commands begin that are not; by "" if that is all of it.
        saved_as: The file that readers are told to save it as; "" if they are not.
    """

    where: str
    language: str
    text: str
    reasons: dict[str, str]
    saved_as: str

    @property
    def is_run(self) -> bool:
        """Whether any of it is."""
        return "" not in self.reasons

    def reason_of(self, command: str) -> str | None:
        """Why a command of it is not run; None if it is."""
        return next((why for start, why in self.reasons.items() if command.startswith(start)), None)


class Command(NamedTuple):
    """Something to type, and what the page shows as its output."""

    text: str
    shown: list[str]


def name(page: Path) -> str:
    """As seen from the repository's root."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The boxes of a page in order."""
    text, found, end = page.read_text(), [], 0
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("indent")) + 1
        reasons = {one["some"] or "": one["why"] for one in _COMMENT.finditer(match["comments"])}
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.M)
        saved = _SAVED.findall(text[end : match.start()])
        end = match.end()
        found.append(Block(f"{name(page)}:{line}", match["language"], body, reasons, saved[-1] if saved else ""))
    return found


def commands(block: Block) -> Iterator[Command]:
    """What is typed: all lines, or those with a prompt if there is any; what is not complete goes on in the next."""
    prompted = re.search(r"^\$ ", block.text, re.MULTILINE) is not None
    typed, shown = "", list[str]()
    for line in block.text.splitlines():
        if typed and not _is_complete(typed):
            typed += "\n" + line
        elif prompted and not line.startswith("$ "):
            shown.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            if typed:
                yield Command(typed, shown)
            typed, shown = line.removeprefix("$ "), []
    if typed:
        yield Command(typed, shown)


def _is_complete(typed: str) -> bool:
    if typed.rstrip().endswith("\\"):
        return False
    if not re.search(r"[\"'({]|<<|\b(?:for|while|if|do)\b", typed):
        return True
    return subprocess.run(["bash", "-n", "-c", typed], capture_output=True, check=False).returncode == 0
