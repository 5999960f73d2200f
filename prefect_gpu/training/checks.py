"""What users hand in, checked: each error names the argument, its value and what to do."""

from __future__ import annotations

import json
import math
import operator
import re
from numbers import Real
from typing import Any


class NonFiniteLoss(ValueError):
    """The loss is NaN or infinite: the training has diverged.

    Attributes:
        loss: The value.
        step: The number of the step, counted from 1.
    """

    def __init__(self, loss: float, step: int) -> None:
        self.loss = loss
        self.step = step
        super().__init__(
            f"loss={loss} at step {step} is not a finite number: the training has diverged. Lower the learning rate, "
            "clip the gradients or look for bad input, or pass on_nonfinite='warn' to training_run() to keep going."
        )

    def __reduce__(self) -> tuple[type[NonFiniteLoss], tuple[float, int]]:
        return NonFiniteLoss, (self.loss, self.step)  # Prefect moves exceptions between processes


class TrainingRunError(RuntimeError):
    """A call came at a time at which it makes no sense. The message says when it does."""


def second_training(call: str, reporter: str, without: str) -> TrainingRunError:
    """A second training reports to one run, and its checkpoints would be taken for those of the first one.

    Args:
        call: What begins it, such as ``"fit()"``.
        reporter: The class of the callback.
        without: How the callback is told to save nothing.
    """
    return TrainingRunError(
        f"{call} begins a second time with one {reporter}: another training, as when a head was trained and then the "
        f"whole model, needs a training_run() and a {reporter} of its own, or none of its checkpoints ({without})."
    )


def number(value: Any, name: str) -> float:
    """A number, also one of numpy or of a tensor library, as float.

    A tensor on a GPU has to be fetched, which waits for the device: report one that is on the CPU already, or not in
    every step, where that matters.
    """
    if hasattr(type(value), "__float__"):
        value = value.detach() if hasattr(value, "detach") else value  # PyTorch warns of a loss that has a gradient
        try:
            # numpy no longer turns an array of one number into a float, tensors of one number do; both have item().
            return float(value.item() if getattr(value, "ndim", 0) else value)
        except OverflowError:
            return math.inf
        except (TypeError, ValueError, RuntimeError):  # an array of several numbers, say
            pass
    text = repr(value)
    raise TypeError(
        f"{name}={text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__}) is not a number: "
        f"pass a float, for example {name}=float(value) or {name}=values.mean()."
    )


def _is_number(value: Any) -> bool:
    """Whether it is a number of Python's own or one of numpy, which counts as a number but not as an ``int``."""
    return isinstance(value, (int, float)) or (isinstance(value, Real) and hasattr(value, "item"))


def is_name(value: Any) -> bool:
    """Whether it is a name that can be part of a file's: letters, digits, - and _."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value) is not None


def count(value: Any, name: str, *, least: int, remedy: str) -> int:
    """A whole number of at least ``least``."""
    if not isinstance(value, bool):
        try:
            whole = operator.index(value)
        except TypeError:
            whole = None
        if whole is not None and whole >= least:
            return whole
    raise ValueError(f"{name}={value!r} must be a whole number of at least {least}: {remedy}")


def seconds(value: Any, name: str, *, remedy: str) -> float:
    """A positive, finite duration in seconds."""
    if _is_number(value) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError(f"{name}={value!r} must be a number of seconds above 0: {remedy}")


def features(value: Any) -> dict[str, Any] | None:
    """What the estimator may learn from, beside steps and batch size: a flat dict of numbers and short texts."""
    if value is None:
        return None
    problem = "" if isinstance(value, dict) else "is not a dict"
    found = {}
    if not problem:
        for key, item in value.items():
            if _is_number(item) and not isinstance(item, (int, float)):
                item = item.item()
            found[key] = item
            if not isinstance(key, str):
                problem = f"has the key {key!r}, which is no text"
            elif not isinstance(item, (str, int, float, type(None))):
                problem = f"holds {key}={item!r}, which is neither a number nor a text"
            elif isinstance(item, float) and not math.isfinite(item):
                problem = f"holds {key}={item!r}, which is not finite"
        if not problem and len(json.dumps(found)) > 16_384:
            problem = "is larger than 16 KiB"
    if problem:
        raise ValueError(
            f"features= {problem}: pass a flat dict of numbers and short texts, such as "
            "{'layers': 50, 'dataset_rows': 60000}."
        )
    return found


def metrics(values: dict[str, Any]) -> dict[str, float | None]:
    """Metrics as JSON can hold them: an undefined one (NaN, infinite or None) is None."""
    finite: dict[str, float | None] = {}
    for name, value in values.items():
        if type(value) is not float:
            value = number(value, name) if value is not None else None
        finite[name] = value if value is not None and math.isfinite(value) else None
    return finite
