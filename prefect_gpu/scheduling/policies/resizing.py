"""When may an elastic job be resized? F-scheduling's stages and its rules against thrashing (Seo, 2020, §4.4)."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_gpu.scheduling.policies.elasticity import ElasticJob

LEAST_GAIN_STEPS_PER_S = 1.0
PROTECTED_LAUNCHES = 3.0


def worth_applying(
    jobs: Sequence[ElasticJob],
    before: Mapping[str, int],
    after: Mapping[str, int],
    least_gain_steps_per_s: float = LEAST_GAIN_STEPS_PER_S,
) -> bool:
    """Whether a new assignment is worth the restarts (§4.4): a waiting job starts, or the sum of f rises enough.

    Args:
        jobs: The jobs that the assignments name.
        before: GPUs by job id now, of the running jobs.
        after: GPUs by job id in the new assignment.
        least_gain_steps_per_s: By how much the throughput sum must rise otherwise, in steps per second.
    """
    if any(count > 0 and before.get(name, 0) == 0 for name, count in after.items()):
        return True
    by_id = {job.id: job for job in jobs}
    gain = sum(by_id[name].f(count) for name, count in after.items())
    gain -= sum(by_id[name].f(count) for name, count in before.items())
    return gain >= least_gain_steps_per_s


class Stage(enum.Enum):
    """The states of an elastic job (§4.4)."""

    WAITING_FOR_INITIAL_CONTACT = "waiting for initial contact"
    WAITING_FOR_INITIAL_RESOURCE = "waiting for initial resource"
    STANDBY = "standby"
    LAUNCHING = "launching"
    RUNNING_PROTECTED = "running, protected"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    STOPPING = "stopping"
    FINISHED = "finished"


LEGAL: Mapping[Stage, frozenset[Stage]] = {
    Stage.WAITING_FOR_INITIAL_CONTACT: frozenset({Stage.WAITING_FOR_INITIAL_RESOURCE}),
    Stage.WAITING_FOR_INITIAL_RESOURCE: frozenset({Stage.STANDBY}),
    Stage.STANDBY: frozenset({Stage.LAUNCHING}),
    Stage.LAUNCHING: frozenset({Stage.RUNNING_PROTECTED}),
    Stage.RUNNING_PROTECTED: frozenset({Stage.RUNNING, Stage.FINISHED}),
    Stage.RUNNING: frozenset({Stage.CHECKPOINTING, Stage.FINISHED}),
    Stage.CHECKPOINTING: frozenset({Stage.STOPPING}),
    Stage.STOPPING: frozenset({Stage.STANDBY}),
    Stage.FINISHED: frozenset(),
}
"""Which stage may follow which. A job that fails or is cancelled leaves the machine: it has no stage any more."""

LOCKED = frozenset(
    {Stage.STANDBY, Stage.LAUNCHING, Stage.RUNNING_PROTECTED, Stage.CHECKPOINTING, Stage.STOPPING},
)
"""Stages in which a job's GPUs may neither be taken nor added to."""


@dataclass
class Lifecycle:
    """Where a job is among the stages, and how long it is protected.

    Attributes:
        since_s: When the stage began, in seconds.
        launching_s: How long the last launch took.
    """

    stage: Stage = Stage.WAITING_FOR_INITIAL_CONTACT
    since_s: float = 0.0
    launching_s: float = 0.0

    @property
    def schedulable(self) -> bool:
        """Whether an assignment may give the job another number of GPUs."""
        return self.stage in (Stage.WAITING_FOR_INITIAL_RESOURCE, Stage.RUNNING)

    @property
    def protected_until_s(self) -> float | None:
        """When protection ends: three times the last launch after training began; None if not protected."""
        if self.stage is not Stage.RUNNING_PROTECTED:
            return None
        return self.since_s + PROTECTED_LAUNCHES * self.launching_s

    def enter(self, stage: Stage, now_s: float) -> None:
        """Go to the next stage.

        Raises:
            ValueError: The stage cannot follow the present one, or time would run backwards.
        """
        if stage not in LEGAL[self.stage]:
            legal = ", ".join(sorted(other.value for other in LEGAL[self.stage])) or "nothing"
            raise ValueError(f"stage {stage.value!r} cannot follow {self.stage.value!r}: only {legal} can")
        if now_s < self.since_s:
            raise ValueError(f"now_s is {now_s}, before the stage began ({self.since_s}): give events in order")
        if self.stage is Stage.LAUNCHING:
            self.launching_s = now_s - self.since_s
        self.stage = stage
        self.since_s = now_s

    def wake(self, now_s: float) -> bool:
        """End the protection if its time is over; says whether it ended."""
        until = self.protected_until_s
        if until is None or now_s < until:
            return False
        self.enter(Stage.RUNNING, now_s)
        return True
