"""What the learning side knows of runs: what was known when one was submitted, and what it turned out to need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What is estimated. Seconds, bytes, cores, bytes per second; utilisation is a fraction of 1.
LAUNCHING_S = "launching_s"  # Liquid's T_l: from the grant to the first step (§5.1)
STEP_S = "step_s"  # T_t + T_sy: seconds of one step
TRAINING_S = "training_s"  # N·(T_t + T_sy)
SAVING_S = "saving_s"  # T_sa
MEMORY_BYTES = "memory_bytes"  # peak on one device; of a virtual device, the process's resident memory stands for it
UTILISATION = "utilisation"  # mean of the devices, 0 to 1
UTILISATION_STD = "utilisation_std"
NETWORK_BYTES_PER_S = "network_bytes_per_s"
CPU_CORES = "cpu_cores"  # cores in use on average
TARGETS = (
    LAUNCHING_S,
    STEP_S,
    TRAINING_S,
    SAVING_S,
    MEMORY_BYTES,
    UTILISATION,
    UTILISATION_STD,
    NETWORK_BYTES_PER_S,
    CPU_CORES,
)


MARKS = (1, 2, 3, 5, 7, 10, 15, 25, 50, 75)  # per cent of the steps at which a run's pace is noted


@dataclass(frozen=True)
class Known:
    """What is known of a run when it is submitted.

    Attributes:
        program: What it runs: the flow's name.
        parameters: The flow run's parameters; numbers, texts, booleans, nested as users like.
        declared: What the run said of itself at its start (``training_run(steps=..., batch_size=..., features=...)``)
            or what was named beforehand. Runs that have not started have none of it.
        gpus: Devices of each instance; of an elastic run that is over, those that it had last.
        workers: Instances (Liquid's num_worker).
        servers: Parameter servers (num_ps).
        cpus: Cores asked for; None: left to the pool.
        category: Kind of model.
        device_kind: Kind of the devices it runs on, or would run on; None: unknown.
        named: The parameters that its user says matter; empty: all of them may.
    """

    program: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    gpus: float = 1
    workers: int = 1
    servers: int = 0
    cpus: float | None = None
    category: str | None = None
    device_kind: str | None = None
    named: Sequence[str] = ()


@dataclass(frozen=True)
class FinishedRun:
    """One run that is over.

    Attributes:
        run_id: Its name; it says nothing about what the run needs.
        known: What was known at submission.
        measured: By target, in the units of the targets. Only what was measured, and finite.
        completed: Whether it ran to its end. Times of others teach nothing.
        out_of_memory: Whether it ended because memory ran out: then its peak is the least that it would have needed.
        ended_at: Unix seconds.
        steps: Steps that it finished; None: unknown.
        pace: Seconds from the beginning of training until so many per cent of the steps were done (:data:`MARKS`);
            empty: it was not followed, or not from its first step on.
        speeds: Of an elastic run, its steps per second by number of devices, of all its launches together.
        apart: The same on several nodes.
        nodes: On how many nodes its devices were at last.
    """

    run_id: str
    known: Known
    measured: Mapping[str, float] = field(default_factory=dict)
    completed: bool = True
    out_of_memory: bool = False
    ended_at: float = 0.0
    steps: int | None = None
    pace: Mapping[int, float] = field(default_factory=dict)
    speeds: Mapping[int, float] = field(default_factory=dict)
    apart: Mapping[int, float] = field(default_factory=dict)
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval that covers the true one as often as was asked (90 % unless told otherwise)."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Pace:
    """How the pace of a program's trainings goes on: its first steps are slower or quicker than its later ones.

    Attributes:
        bias: By mark, the logarithm of the seconds per step from there on, over those seen up to there.
        std: By mark, how far runs scatter around that.
    """

    bias: Sequence[float]
    std: Sequence[float]


@dataclass(frozen=True)
class RunEstimate:
    """What a run is expected to need.

    Attributes:
        targets: An interval for each target that can be estimated; a target that is missing is unknown.
        from_runs: Completed runs of the same program that it rests on; 0: it rests on other programs.
        basis: What it was learned from, for people.
        coverage: How often the intervals are meant to hold, 0 to 1.
        warnings: What is odd about the submission or its program: values never seen, a program that changed.
        pace: How its trainings' pace goes on; None: nobody knows.
        ran_out_of_memory: Whether a run that was submitted alike did: its memory is known, though none has completed.
    """

    targets: Mapping[str, Interval] = field(default_factory=dict)
    from_runs: int = 0
    basis: str = "no run like it has finished yet"
    coverage: float = 0.9
    warnings: tuple[str, ...] = ()
    pace: Pace | None = None
    ran_out_of_memory: bool = False


NOTHING_KNOWN = RunEstimate()
