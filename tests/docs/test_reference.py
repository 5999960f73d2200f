"""The reference is what the code says, and the pages lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_the_reference_is_what_the_code_says() -> None:
    command = [sys.executable, "docs/build_reference.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for link in _LINK.findall(text):
        if link.startswith(("http://", "https://", "#")):
            continue
        target, _, anchor = link.partition("#")
        found = page.parent / target
        assert found.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in headings(found), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_examples_can_be_read(page: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        if "reference" not in page.parts:  # whose signatures are no statements
            compile(code, str(page), "exec")


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
