"""All formats by name, and the door to them: :func:`read_trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prefect_gpu.simulation.traces import deepshare, elasticflow, gavel, muri, neutral, openb, philly
from prefect_gpu.simulation.traces.job import TraceError, TraceJob
from prefect_gpu.simulation.traces.table import header, text_lines


@dataclass(frozen=True, slots=True)
class Format:
    """One way of writing a trace.

    Attributes:
        read: Reads a file: its jobs, in the order of the file.
        columns: Names that the header of such a file must hold; empty for a format without header.
    """

    read: Callable[[Path], Iterator[TraceJob]]
    columns: tuple[str, ...] = ()


# Where a file fits several, the first is meant: those that ask for more stand before those that ask for less.
FORMATS: dict[str, Format] = {
    "muri": Format(muri.read_muri, muri.MURI_COLUMNS),
    "chronus": Format(philly.read_chronus, philly.CHRONUS_COLUMNS),
    "openb": Format(openb.read_openb, openb.OPENB_COLUMNS),
    "neutral": Format(neutral.read_neutral, neutral.NEUTRAL_COLUMNS),
    "philly": Format(philly.read_philly, philly.PHILLY_COLUMNS),
    "tiresias": Format(muri.read_tiresias, (*muri.TIRESIAS_COLUMNS, "interval")),
    "elasticflow": Format(elasticflow.read_elasticflow, elasticflow.ELASTICFLOW_COLUMNS),
    "deepshare": Format(deepshare.read_deepshare),
    "gavel": Format(gavel.read_gavel),
}


def guess_format(path: str | Path) -> str:
    """Name of the format that a file is in, from its first line that is not blank.

    Raises:
        TraceError: It is in none of them.
        OSError: The file cannot be opened.
    """
    path = Path(path)
    first = next((line for line in text_lines(path) if line.strip()), "")
    if first.lstrip().startswith("{"):
        return "deepshare"
    if first.count("\t") == gavel.COLUMNS - 1:
        return "gavel"
    names = set(header(path))
    for name, known in FORMATS.items():
        if known.columns and names.issuperset(known.columns):
            if name == "elasticflow" and names.isdisjoint(elasticflow.SUBMITTED):
                continue
            return name
    problem = "is empty" if not first else f"has the first line {first.strip()[:120]!r}, which no known format has"
    raise TraceError(path, None, "", None, problem, f"name the format, one of {', '.join(sorted(FORMATS))}.")


def read_trace(path: str | Path, format: str | None = None) -> Iterator[TraceJob]:
    """The jobs of a trace, sorted by submission; jobs of the same time keep the order of the file.

    The whole file is read when the first job is asked for, because many published traces stand in no order of time.
    ``FORMATS[name].read(path)`` gives the jobs one by one in the order of the file instead.

    Args:
        path: The file, gzipped or not.
        format: A name from ``FORMATS``; None guesses it from the first line.

    Raises:
        TraceError: The file is no such trace, a value is out of its range, or a name stands twice.
        ValueError: There is no such format; raised at once.
        OSError: The file cannot be opened.

    Example:
        >>> [job.gpus for job in read_trace("trace1.csv")]  # doctest: +SKIP
        [1, 8, ...]
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format={format!r} is not known: choose one of {', '.join(sorted(FORMATS))}.")
    return _sorted(Path(path), format)


def _sorted(path: Path, format: str | None) -> Iterator[TraceJob]:
    yield from sorted(FORMATS[format or guess_format(path)].read(path), key=lambda job: job.submit_s)
