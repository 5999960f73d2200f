"""The contest for being champion: two models, the same examples, one decision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from prefect_gpu.retraining.comparison import Comparison, as_losses, check_limits, compare
from prefect_gpu.retraining.page import decision_page, history_page
from prefect_gpu.retraining.records import RegistryError
from prefect_gpu.retraining.registry import ModelRegistry
from prefect_gpu.retraining.versions import Decision, Superseded, Version
from prefect_gpu.units import plural


class Contest(NamedTuple):
    """How it ended.

    Attributes:
        comparison: The test behind the decision; None: there was no champion, or none that has answers, or the
            challenger was it already.
        page: Markdown about it, for an artifact of Prefect's.
    """

    decision: Decision
    comparison: Comparison | None
    page: str


def contest(
    models: ModelRegistry,
    challenger: Version,
    *,
    load: Callable[[Path], Any],
    losses: Callable[[Any], Any],
    level: float = 0.05,
    min_gain: float = 0.0,
    loss: str = "loss",
    **made: str,
) -> Contest:
    """Promote the challenger if it is better than the champion beyond chance; else keep the champion.

    If another decision comes first, it is compared with the new champion. The first challenger becomes the champion. If
    it is the champion already, nothing is decided: the decision that made it the champion stands. A champion whose loss
    is NaN has no answer, as data have drifted. Such an example counts as the worst loss of both models; a champion
    without any answer gives way.

    Args:
        load: Makes a model of its file.
        losses: A model's losses on the held-out examples, for each example one, always in the same order.
        level, min_gain, loss: See :func:`.compare`.
        made: ``run`` and ``run_url``, for the decision.

    Raises:
        RegistryError: The registry cannot be used, a model is damaged, or the champion fails where the challenger does
            not: its class is gone, say, or data have other columns. The message names the remedy.
        TypeError: ``models`` is no registry.
        ValueError: The losses are none.
    """
    if not isinstance(models, ModelRegistry):
        raise TypeError(f"models={models!r} is no registry: give ModelRegistry({models!r}).")
    check_limits(level, min_gain)  # also where there is no champion yet: each later contest would end with an error
    new = as_losses(losses(models.load(challenger, load)), "challenger")  # also of the first one: no champion is broken
    while True:
        champion = models.champion()
        if champion is not None and champion.number == challenger.number:  # another run has judged it meanwhile
            decision = next(one for one in reversed(models.decisions()) if one.version == challenger.name)
            return Contest(decision, None, history_page([decision]))
        found: Comparison | None = None
        facts: dict[str, float] = {}
        if champion is None:
            reason = "There was no model yet, to be compared with."
        else:
            answers = _of_champion(champion, challenger, lambda model: losses(models.load(model, load)))
            old, lacking = _answered(answers, worst=float(new.max(initial=0.0)))
            missing = f"{champion.name} has no answer (NaN) for {lacking} of {plural(len(new), 'example')}"
            if lacking and lacking == len(new):
                reason = f"{missing}: {challenger.name} has one for each."
            else:
                found = compare(new, old, level=level, min_gain=min_gain, loss=loss)
                reason = found.reason + (f" {missing}, which counts as the worst loss." if lacking else "")
                facts = {"p_value": found.p_value, "gain": found.gain, "examples": found.examples}
        try:
            if champion is None or found is None or found.better:
                decision = models.promote(challenger, reason, instead_of=champion, facts=facts, **made)
            else:
                decision = models.keep(challenger, reason, champion=champion, facts=facts, **made)
        except Superseded:
            continue
        return Contest(decision, found, decision_page(decision, challenger, champion, found))


def _of_champion(champion: Version, challenger: Version, losses: Callable[[Version], Any]) -> Any:
    """Its losses. The challenger has been loaded and asked already, so an error here is the champion's own."""
    try:
        return losses(champion)
    except RegistryError:
        raise
    except Exception as error:
        raise RegistryError(
            f"{champion.name}, the champion, cannot be loaded or asked: {type(error).__name__}: {error}. "
            f"{challenger.name} can. Mend what fails, or make {challenger.name} the champion by hand: registry.promote("
            f"registry.version({challenger.name!r}), 'why', instead_of=registry.champion())."
        ) from error


def _answered(values: Any, worst: float) -> tuple[Any, int]:
    """A champion's losses with the worst of all in the place of NaN, and how many were."""
    import numpy as np

    losses = np.asarray(values, dtype=float)
    lacks = np.isnan(losses)
    if not lacks.any():
        return losses, 0
    return np.where(lacks, losses.max(initial=worst, where=~lacks), losses), int(lacks.sum())
