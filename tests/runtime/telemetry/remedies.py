"""What each finding that is not good must have: commands that are there, and can be typed as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.docs.test_code_blocks import check, parts


def names_its_remedies(findings: Iterable[Mapping[str, Any]]) -> None:
    """Fail if one has no command in backquotes, or one that its program does not know."""
    for finding in findings:
        if finding["level"] == "ok":
            continue
        named = re.findall(r"`([^`]+)`", finding["remedy"])
        assert named, f"{finding['text']} What is to be typed? {finding['remedy']}"
        for command in named:
            assert "<" not in re.sub(r'<\d[\d.]*"', "", command), f"a placeholder in {command}"
            for words in parts(command):
                check(words)
