"""One job of a trace, and what is said when a trace cannot be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 60  # characters of an offending value in a message


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job as a trace describes it. Times are seconds on the trace's own clock.

    Attributes:
        job_id: Name of the job, unique in its trace.
        submit_s: When the job was submitted.
        duration_s: Seconds that the job trains for alone on the GPUs it asks for; may be 0.
        gpus: GPUs that it asks for; 0 for a job that only needs cores.
        model: What it trains; empty where the trace does not say.
        batch_size: Samples per iteration; None: unknown.
        iterations: Iterations until it is done; None: unknown.
        iteration_s: Seconds of one iteration alone; None: unknown.
        stages_s: Seconds that one iteration spends on each of several resources (Muri's ``resource_time_0..2``:
            GPU, CPU or storage, network); stages overlap, so their sum may exceed ``iteration_s``.
        samples: Samples until it is done (DeepShare); None: unknown.
        user: Who submitted it.
        queue: Queue or virtual cluster that it was submitted to.
        priority: As the trace gives it.
        deadline_s: When it should be done, on the same clock as ``submit_s``; None: no deadline.
        cpus: Cores that it asks for; None: unknown.
        gpu_share: Part of each GPU that it asks for, 0 to 1.

    Raises:
        ValueError: A field is out of its range. The message names field, value and remedy.
    """

    job_id: str
    submit_s: float
    duration_s: float
    gpus: int
    model: str = ""
    batch_size: int | None = None
    iterations: int | None = None
    iteration_s: float | None = None
    stages_s: tuple[float, ...] = ()
    samples: float | None = None
    user: str = ""
    queue: str = ""
    priority: int = 0
    deadline_s: float | None = None
    cpus: float | None = None
    gpu_share: float = 1.0

    def __post_init__(self) -> None:
        if not self.job_id:
            raise ValueError("job_id='' is empty: give every job a name of its own.")
        if not math.isfinite(self.submit_s):
            raise ValueError(f"submit_s={self.submit_s!r} is not a finite number: give seconds.")
        for name in ("duration_s", "gpus", "batch_size", "iterations", "iteration_s", "samples", "cpus"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r} is negative or not finite: give a number of at least 0.")
        if not all(0 <= stage < math.inf for stage in self.stages_s):
            raise ValueError(f"stages_s={self.stages_s!r} has a negative or infinite time: give seconds.")
        if self.deadline_s is not None and not math.isfinite(self.deadline_s):
            raise ValueError(f"deadline_s={self.deadline_s!r} is not a finite number: leave it out for no deadline.")
        if not 0 <= self.gpu_share <= 1:
            raise ValueError(f"gpu_share={self.gpu_share!r} is no part of a GPU: give a number from 0 to 1.")


class TraceError(ValueError):
    """A trace that cannot be read, with the place to mend.

    Attributes:
        path: The file.
        line: Where in the file, counted from 1; None where it is about the file as a whole.
        column: The column (in JSON: the key); empty where it is about a whole line.
        value: What stands there; None where nothing does.
    """

    def __init__(self, path: Path, line: int | None, column: str, value: object, problem: str, remedy: str) -> None:
        self.path, self.line, self.column, self.value = path, line, column, value
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        place = str(path) if line is None else f"{path}, line {line}"
        what = f"{column}={shown}" if column and value is not None else column or ("" if value is None else shown)
        super().__init__(f"{place}: {what}{' ' if what else ''}{problem}: {remedy}")
