"""One thing found out about a node, in words for the person who can change it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """What was found, and what to do about it.

    Attributes:
        level: ``ok``; ``warning``: runs will work, but not as they might; ``error``: no run can start.
        subject: What it is about, in a word or two: ``"devices"``, ``"GPU 3"``.
        text: What was found, a sentence.
        remedy: What to do about it, with the command to type in backquotes; empty where nothing needs doing.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""

    @property
    def commands(self) -> list[str]:
        """The commands of the remedy."""
        return re.findall(r"`([^`]+)`", self.remedy)
