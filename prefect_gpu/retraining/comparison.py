"""Champion against challenger: is a new model better than the one in use, or was it lucky with these examples?

Both are asked about the same held-out examples, so that their losses come in pairs. The test is a permutation test of
these pairs (sign flips, Fisher 1935): were the models equally good, it would be chance which of a pair's two losses
is whose. Of losses that are 0 or 1 it is McNemar's exact test. The interval is a bootstrap over the examples. With
thousands of examples both are what the paired t-test says, which is then asked instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_RESAMPLES = 9_999
_MANY = 2_000  # examples: from here on, resampling takes its time and finds what the normal distribution says
_LARGEST = 1e100  # loss: squares and sums of such are finite still
_CELLS_AT_ONCE = 4_000_000  # numbers in memory: 32 MB


@dataclass(frozen=True)
class Comparison:
    """What the comparison of two models has found.

    Attributes:
        challenger, champion: Mean losses.
        low, high: The gain's confidence interval, at ``1 - 2 * level``: its lower end says the same as the test.
        p_value: How often a gain like this, or a larger one, comes about by chance if the true one is ``min_gain``.
        level: The largest p-value with which a challenger wins.
        min_gain: By how much the mean loss has to fall.
        examples: How many there were.
        loss: What the loss is called.
    """

    challenger: float
    champion: float
    low: float
    high: float
    p_value: float
    level: float
    min_gain: float
    examples: int
    loss: str = "loss"

    @property
    def gain(self) -> float:
        """By how much the challenger's mean loss is smaller."""
        return self.champion - self.challenger

    @property
    def confidence(self) -> float:
        """Of the interval: 0.9 for 90 %."""
        return 1 - 2 * self.level

    @property
    def better(self) -> bool:
        """Whether the challenger is better beyond chance, and by more than the least gain."""
        return self.gain > self.min_gain and self.p_value <= self.level

    @property
    def reason(self) -> str:
        """The outcome in plain words."""
        whose = f"The challenger's {self.loss}"
        if self.gain <= 0:
            return f"{whose} is not smaller ({0.0 - self.gain:+.3g} on {self.examples} examples)."
        found = f"{whose} is smaller by {self.gain:.3g} on {self.examples} examples"
        if self.gain <= self.min_gain:
            return f"{found}, and more than {self.min_gain:.3g} is asked for."
        what = f"More than the {self.min_gain:.3g} that is asked for" if self.min_gain else "That much"
        chance = f"by chance in {_share(self.p_value)} of all cases"
        limit = f"at most {self.level:.1%} is allowed"
        if self.better:
            return f"{found}. {what} comes about {chance}, and {limit}: it is better."
        return f"{found}. But {what[0].lower()}{what[1:]} comes about {chance}, and {limit}: it may have been lucky."


def compare(
    challenger: Sequence[float] | np.ndarray,
    champion: Sequence[float] | np.ndarray,
    *,
    level: float = 0.05,
    min_gain: float = 0.0,
    loss: str = "loss",
    seed: int = 0,
) -> Comparison:
    """Compare two models by their losses on the same examples, in the same order.

    Args:
        challenger, champion: One loss for each example; smaller is better. Any loss does: 0 or 1 for wrong answers, log
            losses, squared errors. No model may have been trained on these examples, and each of them stands alone:
            of ten frames of one film, take one.
        level: The largest p-value with which the challenger wins, and so the share of challengers that win although
            they are no better.
        min_gain: By how much the mean loss has to fall for a change to be worth its while.
        loss: What the loss is called, for :attr:`Comparison.reason`.
        seed: Of the permutations and the bootstrap.

    Raises:
        ValueError: The losses are not pairs of finite numbers, or a limit makes no sense.

    Example:
        >>> outcome = compare([0.1] * 30, [0.4, 0.6] * 15)
        >>> outcome.better, round(outcome.gain, 3)
        (True, 0.4)
    """
    import numpy as np

    new, old = as_losses(challenger, "challenger"), as_losses(champion, "champion")
    if len(new) != len(old):
        raise ValueError(f"challenger has {len(new)} losses and champion has {len(old)}: one of each for each example.")
    if len(new) < 2:
        raise ValueError(f"challenger has {len(new)} losses: hold out more examples, some dozens at least.")
    check_limits(level, min_gain)

    difference = old - new
    if _all_alike(difference) and np.isclose(difference[0], min_gain, rtol=1e-9, atol=0.0):
        difference = np.full(len(new), min_gain)  # rounding must not say that it is more
    p_value, low, high = (_by_t_test if len(new) > _MANY else _by_resampling)(difference, level, min_gain, seed)
    return Comparison(float(new.mean()), float(old.mean()), low, high, p_value, level, min_gain, len(new), loss)


def check_limits(level: float, min_gain: float) -> None:
    """Refuse what no models can be compared with: at once, and not when the challenger is trained.

    Raises:
        ValueError: A limit makes no sense. The message names it.
    """
    if not (isinstance(level, Real) and 0 < level < 0.5):
        raise ValueError(f"level={level!r} must be between 0 and 0.5, such as 0.05.")
    if not (isinstance(min_gain, Real) and 0 <= min_gain < float("inf")):
        raise ValueError(f"min_gain={min_gain!r} must be 0 or more, in units of the loss.")


def as_losses(values: Any, name: str) -> np.ndarray:
    """A model's losses, one for each example.

    Raises:
        ValueError: They are no finite numbers, or too large, or not one for each example.
    """
    import numpy as np

    try:
        losses = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} has what is no number ({error}): give one loss for each example.") from None
    if losses.ndim != 1:
        raise ValueError(f"{name} has the shape {losses.shape}: give one loss for each example.")
    if not np.isfinite(losses).all():
        raise ValueError(f"{name} has a loss that is not finite: clip probabilities before their logarithm is taken.")
    if np.abs(losses).max(initial=0.0) > _LARGEST:
        raise ValueError(f"{name} has a loss beyond {_LARGEST:g}, which cannot be compared: clip losses before that.")
    return losses


def _by_resampling(difference: np.ndarray, level: float, min_gain: float, seed: int) -> tuple[float, float, float]:
    """The p-value, and the ends of the interval."""
    import numpy as np
    from scipy import stats

    more: Any = {"n_resamples": _RESAMPLES, "batch": max(1, _CELLS_AT_ONCE // len(difference))}
    test = stats.permutation_test(
        (difference - min_gain,), np.mean, alternative="greater", rng=np.random.default_rng(seed),
        permutation_type="samples", **more,  # of one sample: its signs are flipped
    )  # fmt: skip
    if _all_alike(difference):  # there is nothing to resample
        return float(test.pvalue), float(difference[0]), float(difference[0])
    interval = stats.bootstrap(
        (difference,), np.mean, confidence_level=1 - 2 * level, method="percentile", rng=np.random.default_rng(seed),
        **more,
    ).confidence_interval  # fmt: skip
    return float(test.pvalue), float(interval.low), float(interval.high)


def _by_t_test(difference: np.ndarray, level: float, min_gain: float, seed: int) -> tuple[float, float, float]:
    """Likewise."""
    from scipy import stats

    if _all_alike(difference):
        return float(difference[0] <= min_gain), float(difference[0]), float(difference[0])
    interval = stats.ttest_1samp(difference, min_gain).confidence_interval(1 - 2 * level)
    test = stats.ttest_1samp(difference, min_gain, alternative="greater")
    return float(test.pvalue), float(interval.low), float(interval.high)


def _all_alike(difference: np.ndarray) -> bool:
    """Whether all pairs differ by the same, but for rounding. Losses may be small, or alike: no number is near 0."""
    import numpy as np

    return bool(np.allclose(difference, difference[0], rtol=1e-9, atol=0.0))


def _share(p_value: float) -> str:
    return f"{p_value:.1%}" if p_value >= 0.001 else "less than 0.1%"
