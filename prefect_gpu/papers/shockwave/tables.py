"""What Shockwave's authors published: jobs, how fast they are, which batch sizes they take, and who ran when."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from prefect_gpu.papers.shockwave.batches import SAMPLES
from prefect_gpu.simulation.traces import TraceError, TraceJob

MODES = ("static", "accordion", "gns")
_TYPE = re.compile(r"(?P<model>.+) \(batch size (?P<batch>\d+)\)")
_COLUMNS = 12


@dataclass(frozen=True)
class Training(TraceJob):
    """A job whose batch size may change.

    Attributes:
        mode: What changes it: nothing (``static``), phases of training (``accordion``), or the noise of the gradient
            (``gns``).
    """

    mode: str = "static"


class Pattern(NamedTuple):
    """What becomes of a job, which no policy of ours is told.

    Attributes:
        until: Epochs at which another batch size begins, ascending; the last is the end.
        sizes: Batch sizes up to those epochs.
        exclusive_s: Seconds that the job takes alone.
    """

    until: tuple[int, ...]
    sizes: tuple[int, ...]
    exclusive_s: float

    def size(self, epoch: int) -> int:
        """The batch size in this epoch; after the last one, that of the last."""
        return next((size for end, size in zip(self.until, self.sizes, strict=True) if epoch < end), self.sizes[-1])


class Speed(NamedTuple):
    """What was measured together."""

    model: str
    batch: int
    gpus: int


@dataclass(frozen=True)
class Tables:
    """Steps per second; patterns by job; rounds by the name of a published schedule: the jobs of each.

    Attributes:
        published: All published figures by policy, as they are.
    """

    speeds: Mapping[Speed, float]
    patterns: Mapping[str, Pattern]
    published: Mapping[str, Mapping[str, Any]]

    def schedule(self, policy: str) -> list[list[str]]:
        """The jobs of each round under a policy whose schedule was published."""
        return [[str(job) for job in jobs] for jobs in self.published[policy]["schedule_by_round"]]

    @property
    def schedules(self) -> dict[str, str]:
        """Names of the policies whose schedule was published, by their name in small letters."""
        return {name.lower(): name for name, of in self.published.items() if "schedule_by_round" in of}


def read_tables(folder: Path) -> Tables:
    """Read ``v100_throughputs.json``, ``batch_size_patterns.json`` and, if it is there, ``published.json``.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: A file is not of this form.
    """
    published = folder / "published.json"
    try:
        return Tables(
            {
                Speed(row["model"], row["batch_size"], row["gpus"]): row["steps_per_s"]
                for row in json.loads((folder / "v100_throughputs.json").read_text())
                if row["steps_per_s"] > 0
            },
            {
                str(row["job"]): _pattern(row["batch_size_by_epoch_as_runs"], row["exclusive_s"])
                for row in json.loads((folder / "batch_size_patterns.json").read_text())
            },
            json.loads(published.read_text()) if published.exists() else {},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tables={folder} are not those of world='shockwave': {error!r}. Name their folder.") from None


def _pattern(runs: Sequence[tuple[int, int]], exclusive_s: float) -> Pattern:
    return Pattern(tuple(accumulate(epochs for epochs, _ in runs)), tuple(size for _, size in runs), exclusive_s)


def read_jobs(path: Path) -> list[Training]:
    """The jobs of a trace in its order, named by their place in it. Durations are 0: they follow from the world.

    Raises:
        TraceError: A line is not of this form.
    """
    found = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t")):
            line = number + 1
            if len(row) < _COLUMNS:
                raise TraceError(path, line, "", "", f"has {len(row)} columns", f"give {_COLUMNS}, with tabs between.")
            kind = _TYPE.fullmatch(row[0])
            if kind is None or kind["model"] not in SAMPLES:
                raise TraceError(path, line, "job type", row[0], "is not known", "give MODEL (batch size NUMBER).")
            if row[7] not in MODES:
                raise TraceError(path, line, "mode", row[7], "is not known", f"choose one of {', '.join(MODES)}.")
            try:
                steps, gpus, submit_s = int(row[5]), int(row[6]), float(row[11])
            except ValueError as error:
                raise TraceError(path, line, "", None, str(error), "give plain digits.") from None
            found.append(
                Training(
                    str(number),
                    submit_s,
                    0.0,
                    gpus,
                    model=kind["model"],
                    batch_size=int(kind["batch"]),
                    iterations=steps,
                    mode=row[7],
                )
            )
    return found
