"""What the commands share: settings or a message, findings on the screen, JSON on standard output."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from prefect_gpu.units import plural as plural

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import ValidationError
    from rich.console import Console

    from prefect_gpu.runtime.telemetry import Finding
    from prefect_gpu.settings import GpuSettings
    from prefect_gpu.storage.history import History
    from prefect_gpu.storage.row import ContentionRow, HistoryRow

T = TypeVar("T")
_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
_PIPE_WIDTH = 160  # without a terminal nothing is gained by squeezing a table into 80 columns


def console() -> Console:
    """A console on standard output; wide where that is no terminal."""
    import os
    import shutil
    import sys

    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    if columns.strip("0") if columns else sys.stdout.isatty():
        return Console(highlight=False)  # it finds its width by itself; of COLUMNS=0 it would show nothing
    return Console(width=shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns, highlight=False)


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Say on standard error why nothing more can be done, and end with `code` (2: the user's input is wrong)."""
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(code)


def load_settings() -> GpuSettings:
    """The settings; ends the command with code 2 and one line per bad value if there is one."""
    from pydantic import ValidationError

    try:
        return read_settings()
    except ValidationError as error:
        fail("\n       ".join(map(" ".join, explain_settings(error))), code=2)


def read_settings() -> GpuSettings:
    """The settings.

    Raises:
        pydantic.ValidationError: A value is not valid, of ours or of Prefect's own.
    """
    from prefect_gpu.settings import GpuSettings

    settings = GpuSettings()
    _ = settings.resolved_state_dir  # asks Prefect's settings, which are only read when somebody asks
    return settings


def explain_settings(error: ValidationError) -> list[tuple[str, str]]:
    """Two sentences for each bad setting: the field, its value and what is wrong; and what to do."""
    lines, ours = [], dict[str, tuple[str, list[str]]]()
    for problem in error.errors():
        said = problem["msg"].removeprefix("Value error, ")
        if error.title != "GpuSettings":
            field = ".".join(str(part) for part in problem["loc"])
            wrong = f"Prefect's setting {field}={problem['input']!r} is not valid: {said}."
            lines.append((wrong, "Correct it where it is set: `prefect config view --show-sources`."))
            continue
        # The rest of the place says which of several types was tried, or what in the value is wrong.
        name = str(problem["loc"][0]).lower().removeprefix("prefect_integrations_gpu_")
        ours.setdefault(name, (f"{name}={problem['input']!r}", []))[1].append(said)
    for name, (value, found) in ours.items():
        wrong = found[0]
        if not wrong.startswith((f"{name}=", f"{name}[")):  # our own validators name field, value and remedy already
            wrong = f"{value} is not valid: {', or '.join(f'{said[0].lower()}{said[1:]}' for said in found)}."
        lines.append((wrong, f"Correct it, or do without: `unset PREFECT_INTEGRATIONS_GPU_{name.upper()}`."))
    return lines


def read_history(url: str, **chosen: Any) -> tuple[list[HistoryRow], int]:
    """Finished runs, newest first, and how many there are in all; ends the command if there is no reading them.

    Args:
        chosen: Which rows, as for :meth:`prefect_gpu.storage.history.History.rows`.
    """
    return _from_history(url, lambda opened: (opened.rows(**chosen), opened.count()))


def read_contention(url: str, **chosen: Any) -> list[ContentionRow]:
    """What runs on several nodes did to each other, newest first; ends the command if there is no reading it.

    Args:
        chosen: Which rows, as for :meth:`prefect_gpu.storage.history.History.contention`.
    """
    return _from_history(url, lambda opened: opened.contention(**chosen))


def _from_history(url: str, read: Callable[[History], T]) -> T:
    from prefect_gpu.storage.history import History, HistoryError

    try:
        with History(url, read_only=True) as opened:
            return read(opened)
    except HistoryError as error:
        fail(str(error))


@contextmanager
def writing(*paths: Path | None) -> Iterator[None]:
    """End the command with a reason if these files cannot be written, or a picture for them not be drawn."""
    from prefect_gpu.reporting.figure import MissingLibrary

    try:
        yield
    except (MissingLibrary, ValueError) as error:
        fail(str(error))
    except OSError as error:
        # A full disk shows when a file is open already, and then the error does not name it.
        named = error.filename or " or ".join(str(path) for path in paths if path is not None)
        fail(f"{named} cannot be written: {error.strerror}. Name a file that this user may write, where there is room.")


@contextmanager
def deciding(profile: str) -> Iterator[None]:
    """End the command with a reason, and where it is in the code, if a policy of the profile fails."""
    import traceback

    from prefect_gpu.scheduling import SchedulingError, decision

    try:
        yield
    except SchedulingError as error:
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        # A verb that refuses what it is given is not where to mend it.
        [*_, last] = [frame for frame in frames if frame.filename != decision.__file__] or frames
        fail(
            f"profile={profile!r} cannot decide ({error}, in {last.name}, {last.filename}:{last.lineno}): mend the "
            "package that registers it, or choose another profile."
        )


def print_json(value: Any) -> None:
    """Write `value` (dataclasses too) as JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def print_findings(screen: Console, findings: Iterable[Finding]) -> None:
    """One line per finding: how bad, about what, what it is; and below it what to do."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        grid.add_row(level, Text(finding.subject, style="bold"), Text(finding.text))
        if finding.remedy and finding.level != "ok":
            grid.add_row("", "", Text(f"→ {finding.remedy}", style="cyan"))
    with screen.capture() as capture:
        screen.print(grid)
    # Rich fills lines up to the width of the column, which is a nuisance in files and bug reports.
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def ranges(numbers: Sequence[int]) -> str:
    """Numbers for people: ``ranges([0, 1, 2, 3, 8]) == "0–3, 8"``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("–".join(str(end) for end in part) for part in parts)


def short_id(device: str) -> str:
    """What a device is called in a table: of a UUID its beginning, which our commands and CUDA take for the whole.

    Example:
        >>> short_id("GPU-691d9a45-79d3-678e-d660-74627112a349"), short_id("virtual-0")
        ('GPU-691d9a45', 'virtual-0')
    """
    is_uuid = device.startswith(("GPU-", "MIG-")) and not device.startswith("MIG-GPU-")  # these end in what tells apart
    return device[:12] if is_uuid else device


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    return str(value)
