"""What the demo shows while it runs: the devices at this moment, the runs that wait, and each run as it ends."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prefect_gpu.phases import PHASES
from prefect_gpu.reporting import style
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.units import format_seconds

_PHASE_OF_STATE = {"Preparing": "preparing", "Prepared": "gate", "Training": "training", "Saving": "saving"}


@dataclass(frozen=True)
class Seen:
    """One run at this moment.

    Attributes:
        devices: What it holds; empty if it waits or needs none.
        state: The state's name in Prefect.
        why: The state's message; for a run that waits, the reason.
        percent: How far the training is, 0 to 100.
        curve: Its losses as a curve of characters, with the best one.
    """

    run_id: str
    name: str
    flow_name: str
    state: str
    final: bool
    devices: tuple[str, ...] = ()
    why: str = ""
    percent: float = 0.0
    curve: str = ""

    @property
    def phase(self) -> str:
        """The phase that it is in, one of :data:`~prefect_gpu.phases.PHASES`."""
        return _PHASE_OF_STATE.get(self.state, "launching")

    @property
    def waits(self) -> bool:
        """Whether it waits for a device."""
        return not self.final and not self.devices and self.state in ("AwaitingGpu", "Scheduled", "Late")


class Board:
    """The live display; where standard output is no terminal, one line for each thing that happens.

    Args:
        devices: The devices' ids.
        trainings: How many trainings there will be.
        quiet_flows: Flows that start trainings and wait for them; they need no device.
    """

    def __init__(self, console: Console, *, devices: Iterable[str], trainings: int, quiet_flows: Iterable[str]) -> None:
        self._console = console
        self._devices = list(devices)
        self._trainings = trainings
        self._quiet = set(quiet_flows)
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._told: dict[str, str] = {}
        self._ended = 0
        self._away: frozenset[str] = frozenset()

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, runs: list[Seen], away: Iterable[str] = ()) -> None:
        """Show how things are now.

        Args:
            away: Devices that are not there at the moment.
        """
        self._away = frozenset(away)
        if self._live is not None:
            self._live.update(self._picture(runs))
            return
        for run in runs:
            waits = run.waits and bool(run.why)  # without a reason yet, it may be granted a device in a moment
            word = "waits" if waits else "trains" if run.phase == "training" else ""
            if word and not run.final and run.flow_name not in self._quiet and self._told.get(run.run_id) != word:
                self._told[run.run_id] = word
                where = f"on {', '.join(run.devices)}" if run.devices else run.why
                self._line(f"{word} {run.name}  {where}")

    def ended(self, row: HistoryRow, *, goes_on: bool = False) -> None:
        """A run has ended: one line that stays.

        Args:
            goes_on: Only this try of it has: it waits to be tried again.
        """
        good = row.outcome == "completed"
        mark = Text("✓ " if good else "✗ ", style="green" if good else "bold red")
        if goes_on:
            mark = Text("↻ ", style="yellow")
        if row.flow_name in self._quiet:
            words = Text(f"{row.flow_name} {row.outcome}", style="bold")
        else:
            self._ended += not goes_on
            words = Text(f"{row.run_name}  ", style="bold")
            words.append(f"{spent(row)}, on {', '.join(row.devices)}", style="not bold")
        if not good:
            why = (row.message or "").strip().partition("\n")[0]
            words.append(f"  {why}", style="yellow" if goes_on else "red")
        self._line(mark + words)

    def say(self, words: str) -> None:
        """Something else has happened: one line that stays."""
        self._line(Text("! ", style="bold magenta") + Text(words, style="bold"))

    def _line(self, words: str | Text) -> None:
        at = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        self._console.print(at + (words if isinstance(words, Text) else Text(words)), soft_wrap=True)

    def _picture(self, runs: list[Seen]) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, show_edge=False)
        table.add_column("Device", no_wrap=True, ratio=2)
        table.add_column("does", no_wrap=True, width=max(len(phase.word) for phase in PHASES.values()))
        table.add_column("for the run", no_wrap=True, overflow="ellipsis", ratio=5)
        table.add_column("progress", width=14)
        table.add_column("loss as it falls", no_wrap=True, overflow="ellipsis", ratio=4)
        holders = {device: run for run in runs if not run.final for device in run.devices}
        for device in self._devices:
            run = holders.get(device)
            if device in self._away or run is None:
                does = Text("node down", style="red") if device in self._away else Text("idle", style="dim")
                table.add_row(device, does, "", "", "")
                continue
            phase = PHASES[run.phase]
            percent = 100.0 if run.phase == "saving" else run.percent
            table.add_row(
                device, Text(phase.word, style=phase.style), Text(run.name),
                ProgressBar(total=100, completed=percent), Text(run.curve, style="cyan"),
            )  # fmt: skip
        parts: list[RenderableType] = [table]
        waiting = [run for run in runs if run.waits and run.flow_name not in self._quiet]
        for run in waiting[:4]:
            words = Text("waits     ", style="magenta").append(run.name, style="default")
            parts.append(words.append(f"  {run.why}", style="dim"))
        parts += [Text("")] * (4 - len(waiting))  # so that the display does not jump
        done = f"{self._ended} of {self._trainings} trainings have ended, "
        parts.append(Text(done + format_seconds(time.monotonic() - self._began), style="dim"))
        return Padding(Group(*parts), (1, 0, 0, 0))


def spent(row: HistoryRow) -> str:
    """Where a run's time went, and its loss, in one line."""
    return style.spent(row) + (f", loss {row.final_loss:.3g}" if row.final_loss is not None else "")
