"""What a waiting run is told where owners have shares."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.fair_share.words import whose_turn
from prefect_gpu.scheduling.state.waiting import Line

Why = Callable[[Decision, Line], tuple[str, Callable[[], str]]]


def by_share(why: Why) -> Why:
    """Another reason, with whose turn it is, where that matters."""

    def with_turn(decision: Decision, line: Line) -> tuple[str, Callable[[], str]]:
        code, words = why(decision, line)
        standing = decision.standing()
        if standing is None or code not in ("devices", "memory"):
            return code, words
        turn = whose_turn(standing, line.request)
        return "turn", lambda: f"{turn} ({words()})"

    return with_turn
