"""``prefect-gpu history``: the runs that have finished, as a table, as CSV or as JSON."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from prefect_gpu.cli import common
from prefect_gpu.cli.deadline_table import show_deadlines, with_deadline
from prefect_gpu.cli.history_sums import GROUPS, show_sums, sums
from prefect_gpu.phases import PHASES
from prefect_gpu.reporting.spans import REPORTED, phase_seconds
from prefect_gpu.storage.row import OUTCOMES, ContentionRow, HistoryRow

if TYPE_CHECKING:
    from rich.table import Table

_TABLE_ROWS = 20
_REASON = 300  # characters of a message below the table: what an exception says may be as long as its data
_NAME = 7  # characters at least of the names of runs, flows and devices
_WIDE = 118  # columns of a terminal in which the whole table finds room
_OUTCOME_STYLES = {"completed": "green", "failed": "red", "crashed": "red", "cancelled": "yellow"}


def _date(since: str) -> datetime:
    try:
        return datetime.strptime(since, "%Y-%m-%dT%H:%M" if "T" in since else "%Y-%m-%d")
    except ValueError:
        common.fail(f"--since {since!r} is no date: give one such as 2026-11-01, or 2026-11-01T18:00.", code=2)


def history(
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**31, help="Number of runs at most.", show_default=f"{_TABLE_ROWS} in the table, else all"
        ),
    ] = None,
    flow: Annotated[str | None, typer.Option(help="Only runs of this flow.")] = None,
    outcome: Annotated[str | None, typer.Option(help=f"Only runs with this outcome: {', '.join(OUTCOMES)}.")] = None,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write CSV to this file; - for standard output.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", help=f"Show sums instead of runs, by one of {', '.join(GROUPS)}.")
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=_date,
            metavar="DATE",
            help="Only runs that ended then or later: a day such as 2026-11-01, or a time such as 2026-11-01T18:00.",
        ),
    ] = None,
    deadlines: Annotated[
        bool, typer.Option("--deadlines", help="Show runs with deadlines, and how many promises were kept.")
    ] = False,
    contention: Annotated[
        bool,
        typer.Option("--contention", help="Show how much runs on several nodes were slowed down, and by which runs."),
    ] = False,
) -> None:
    """Show finished runs, newest first: how long each waited and worked, and how it ended."""
    if deadlines and (csv_file or by or contention):
        common.fail("--deadlines can only be combined with --flow, --outcome, --since, --limit and --json.", code=2)
    if contention and (csv_file or outcome or by or since):
        common.fail("--contention can only be combined with --flow, --limit and --json.", code=2)
    if outcome is not None and outcome not in OUTCOMES:
        common.fail(f"--outcome {outcome} is none of {', '.join(OUTCOMES)}.", code=2)
    if by is not None and by not in GROUPS:
        common.fail(f"--by {by} is none of {', '.join(GROUPS)}.", code=2)
    if by and (csv_file or limit):
        common.fail("--by sums up all runs, for people or with --json: leave --csv and --limit out.", code=2)
    if as_json and csv_file:
        common.fail("--csv and --json exclude each other.", code=2)
    url = common.load_settings().resolved_history_url
    in_table = not (as_json or csv_file or by or deadlines)
    chosen_limit = limit or (_TABLE_ROWS if in_table else None)
    if contention:
        measured = common.read_contention(url, limit=chosen_limit, flow_name=flow)
        common.print_json(measured) if as_json else _show_contention(measured)
        return
    start = _moment(since) if since else None
    rows, total = common.read_history(url, limit=chosen_limit, flow_name=flow, outcome=outcome, since=start)
    if deadlines:
        found = with_deadline(rows)
        common.print_json(found) if as_json else show_deadlines(found)
    elif by:
        summed = sums(rows, by)
        common.print_json(summed) if as_json else show_sums(summed, by, since)
    elif as_json:
        common.print_json(rows)
    elif csv_file == "-":
        write_csv(rows, sys.stdout)
    elif csv_file:
        try:
            with Path(csv_file).open("w", newline="", encoding="utf-8") as file:
                write_csv(rows, file)
        except OSError as error:
            common.fail(f"{csv_file} cannot be written: {error.strerror}. Name a file that this user may write.")
        typer.echo(f"Wrote {common.plural(len(rows), 'run')} to {csv_file}.")
    else:
        _show(rows, total, url)


def _moment(since: datetime) -> float:
    try:
        return since.timestamp()
    except (ValueError, OverflowError):
        common.fail(
            f"--since {since.date()} is no date of this system's clock: give a later or an earlier one.", code=2
        )


def write_csv(rows: Sequence[HistoryRow], file: TextIO) -> None:
    """Write rows as CSV; every parameter and feature has a column of its own, such as ``parameters.lr``.

    Times are Unix seconds and sizes bytes, as in the database. Device ids are separated by spaces; a parameter
    that is a list, and the parts of a gang, are written as JSON.
    """
    flat = [_flatten(row) for row in rows]
    plain = [item.name for item in dataclasses.fields(HistoryRow) if item.name not in ("parameters", "features")]
    found = {name: None for record in flat for name in record}  # a dict keeps the order in which they came up
    extra = sorted(name for name in found if name not in plain)
    # Only what is in the end of a line is quoted by every Python, and a message may have either character.
    writer = csv.DictWriter(_Lines(file), [*plain, *extra], restval="", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(flat)


class _Lines:
    """A file whose lines end as this system's do."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, line: str) -> int:
        return self._file.write(line.removesuffix("\r\n") + "\n")


def _show(rows: Sequence[HistoryRow], total: int, url: str) -> None:
    from prefect_gpu.reporting.tables import harmless

    screen = common.console()
    if not rows:
        from prefect_gpu.storage.engine import masked

        where = f"in the history ({masked(url)})"
        words = f"No run of this kind {where}." if total else f"No run has finished yet {where}."
        screen.print(words, markup=False, soft_wrap=True)
        return
    screen.print(_table(rows, screen.width))
    screen.print()
    for row in rows:
        if row.message and row.outcome != "completed":
            reason = row.message.strip().partition("\n")[0]
            reason = reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"
            words = harmless(f"{_name(row)} {row.outcome}: {reason}")
            screen.print(words, style="dim", markup=False, soft_wrap=True)
    if len(rows) < total:
        screen.print(f"{len(rows)} of {common.plural(total, 'run')}. --limit shows more, --csv and --json write all.")


def _show_contention(rows: Sequence[ContentionRow]) -> None:
    from rich.text import Text

    from prefect_gpu.reporting.tables import FIGURES, WORDS, each, plain_table

    screen = common.console()
    if not rows:
        screen.print("No run on several nodes has been measured beside another one yet.")
        return
    table = plain_table(*each(WORDS, "Measured", "Flow", "Placed", "Beside", "Placed"), ("Slower", FIGURES))
    for row in rows:
        table.add_row(
            datetime.fromtimestamp(row.measured_at).strftime("%Y-%m-%d %H:%M"),
            Text(row.program),
            _placed(row.gpus, row.nodes),
            Text(row.beside),
            _placed(row.beside_gpus, row.beside_nodes),
            f"{row.slowdown:.2f}×",
        )
    screen.print(table)


def _placed(gpus: int, nodes: int) -> str:
    return f"{common.plural(gpus, 'GPU')} on {common.plural(nodes, 'node')}"


def _table(rows: Sequence[HistoryRow], width: int) -> Table:
    from rich.text import Text

    from prefect_gpu.reporting.tables import FIGURES, WHOLE, each, plain_table

    # In 80 columns every column still finds room, without the time of the end.
    wide = width >= _WIDE
    phases = [PHASES[phase].past.capitalize() for phase in REPORTED]
    others = [PHASES[phase].past.capitalize() for phase in REPORTED if phase != "training"]
    table = plain_table(
        *each(WHOLE, *(["Ended"] if wide else [])),
        *each({"min_width": _NAME}, "Run", "Flow", "Device"),
        *each(FIGURES, "Waited", *phases, "Steps", "Loss"),
        ("Outcome", WHOLE),
        gap=int(wide),
        leave_out=("Steps", *others, "Device", "Waited", "Flow"),
    )
    for row in rows:
        names = (_name(row), row.flow_name, _device(row))
        cells = [Text(name, no_wrap=True, overflow="ellipsis") for name in names]
        cells += [Text(_seconds(value)) for value in (row.waited_s, *phase_seconds(row).values())]
        cells.append(Text("–" if row.steps_done is None else str(row.steps_done)))
        cells.append(Text("–" if row.final_loss is None else f"{row.final_loss:.4g}"))
        cells.append(Text(row.outcome, style=_OUTCOME_STYLES[row.outcome]))
        if wide:
            cells.insert(0, Text(datetime.fromtimestamp(row.ended_at).strftime("%Y-%m-%d %H:%M")))
        table.add_row(*cells)
    return table


def _name(row: HistoryRow) -> str:
    name = row.run_name or row.run_id
    return name if row.attempt == 1 else f"{name} #{row.attempt}"


def _device(row: HistoryRow) -> str:
    if not row.devices:
        return "–"
    # Never pass a virtual device off as a GPU, whatever its kind was recorded as.
    kind = "virtual" if row.virtual else (row.device_kind or "device").removeprefix("NVIDIA ")
    words = f"{len(row.devices)}× {kind}" if len(row.devices) > 1 else kind
    nodes = len({node for node, _ in row.places})
    return f"{words}, {nodes} nodes" if nodes > 1 else words


def _seconds(value: float | None) -> str:
    """Four to six characters: ``0.5s``, ``42s``, ``3m10s``, ``2h05m``."""
    if value is None:
        return "–"
    if value < 9.95:
        return f"{value:.1f}s"
    minutes, seconds = divmod(round(value), 60)
    if minutes == 0:
        return f"{seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"


def _flatten(row: HistoryRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for item in dataclasses.fields(row):
        value = getattr(row, item.name)
        if item.name == "parts":
            flat["parts"] = json.dumps(value) if value else ""
        elif isinstance(value, Mapping):
            flat.update(_dotted(item.name, value))
        else:
            flat[item.name] = " ".join(value) if isinstance(value, tuple) else value
    return flat


def _dotted(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {name: part for key, item in value.items() for name, part in _dotted(f"{prefix}.{key}", item).items()}
    return {prefix: json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value}
