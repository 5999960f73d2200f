"""What people see of a run's phases: one word and one colour for each, wherever they are shown.

The page, the pictures, the command's tables, the demo and the sentences on what happened to a run all ask here, when
they show it. Prefect's UI shows other words for the same phases, the names of states
(:mod:`prefect_gpu.worker.telling.display`): they stay when a word changes here, since automations know them by name.
Samples of output in ``docs/`` are changed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """How a phase is shown.

    Attributes:
        word: What it is called, with a capital letter.
        colour: On light paper: of the pictures, and of the page.
        dark: On the page's dark paper.
        style: In a terminal, in Rich's words: terminals have colours of their own.
        past: What a run that is through with it has done, where its seconds are told.
        detail: What belongs to it, where there is room to say so.
        ink: Of writing on ``colour``.
        dark_ink: Of writing on ``dark``.
    """

    word: str
    colour: str
    dark: str
    style: str
    past: str = ""
    detail: str = ""
    ink: str = "#10151C"
    dark_ink: str = "#10151C"

    @property
    def lower(self) -> str:
        """Its word within a sentence."""
        return self.word[:1].lower() + self.word[1:]

    @property
    def legend(self) -> str:
        """Its word, with what belongs to it."""
        return f"{self.word}: {self.detail}" if self.detail else self.word


#: By the name that the protocol and the activity log have for it, in the order in which a run goes through them. In the
#: history there is no telling apart launching, preparing and waiting at the gate: all of it is ``preparing`` there.
#: ``running`` is a run that reported no phases, ``ending`` the time from its last report to the end of its process.
#:
#: The colours are from the palette of Okabe and Ito, which people with any kind of colour blindness can tell apart; the
#: green is a lighter one. Training is darker than preparing and saving, so that a printout in grey shows it.
PHASES = {
    "launching": Phase("Launching", "#C3C8D1", "#4B5565", "bright_black", dark_ink="#FFFFFF"),
    "preparing": Phase("Preparing", "#E69F00", "#D99A1C", "yellow", "prepared", "start, load code and data"),
    "gate": Phase("At the gate", "#CC79A7", "#C777A3", "magenta"),
    "training": Phase("Training", "#0072B2", "#3A97D4", "bold blue", "trained", ink="#FFFFFF", dark_ink="#0D1117"),
    "saving": Phase("Saving", "#56C8A0", "#4BB78F", "green", "saved"),
    "running": Phase("Running", "#6A6A8A", "#8888A8", "blue", detail="reports no phases", ink="#FFFFFF"),
    "ending": Phase("Ending", "#C8C8C8", "#555D6B", "bright_black", dark_ink="#FFFFFF"),
}
FAILED = Phase("Failed", "#D55E00", "#EF7B3A", "red")


def named(name: str) -> str:
    """The word for a phase; any other name as it is."""
    return PHASES[name].word if name in PHASES else name


def within(name: str) -> str:
    """The word for a phase within a sentence; any other name as it is."""
    return PHASES[name].lower if name in PHASES else name
