"""What a training loop says of its training, checked."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from prefect_gpu.training import checks


class Arguments(NamedTuple):
    """The arguments of :func:`~prefect_gpu.training.run.training_run`, where they are explained."""

    steps: int | None
    batch_size: int | None
    features: dict[str, Any] | None
    checkpoint_every: float | None
    on_nonfinite: Literal["raise", "warn"]
    keep_best: bool | str | None

    def checked(self) -> Arguments:
        """The same, as numbers of Python's own.

        Raises:
            ValueError: One makes no sense. The message names it.
        """
        steps, batch_size, every = self.steps, self.batch_size, self.checkpoint_every
        if steps is not None:
            steps = checks.count(
                steps, "steps", least=1, remedy="pass how many steps the training has, or None if unknown."
            )
        if batch_size is not None:
            batch_size = checks.count(
                batch_size, "batch_size", least=1, remedy="pass the samples per step, or leave it out."
            )
        if every is not None:
            every = checks.seconds(every, "checkpoint_every", remedy="or leave it out to save only when asked.")
        if self.on_nonfinite not in ("raise", "warn"):
            raise ValueError(f"on_nonfinite={self.on_nonfinite!r} must be 'raise' or 'warn'.")
        keep = self.keep_best
        if keep is not None and not (isinstance(keep, bool) or checks.is_name(keep)):
            raise ValueError(f"keep_best={keep!r} must be True, False or a name of letters, digits, - and _.")
        return Arguments(steps, batch_size, checks.features(self.features), every, self.on_nonfinite, keep)

    def told(self) -> dict[str, Any]:
        """What the controller is told of the training, as far as it is known."""
        about = {"steps": self.steps, "batch_size": self.batch_size, "features": self.features}
        return {name: value for name, value in about.items() if value is not None}
