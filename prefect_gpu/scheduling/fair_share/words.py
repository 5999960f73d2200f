"""Whose turn it is, and why, for people."""

from __future__ import annotations

from prefect_gpu.scheduling.fair_share.standing import BORROWED, Standing
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.units import plural


def whose_turn(standing: Standing, request: Request) -> str:
    """What the owner of a waiting run is told about its place among the others."""
    owner = request.owner
    own = f"{standing.called(owner)} {_has_had(standing, owner)}"
    if not standing.would_borrow(request):
        return f"it is next by its owner's share: {own}"
    mine = standing.turn(owner, BORROWED)
    first: tuple[object, str] | None = None
    for other, devices in sorted(standing.waits.items()):
        if other == owner or not devices:
            continue
        turn = standing.turn(other, standing.kind_of(other, standing.has.get(other, 0.0) + 1))
        if turn < mine and (first is None or turn < first[0]):  # type: ignore[operator]
            first = turn, other
    if first is None and not standing.has.get(owner):
        return f"its owner is owed none now, and gets what others leave: {own}"
    if first is None:
        return f"its owner holds its share: {own}, and holds {plural(standing.has.get(owner, 0.0), 'device')} now"
    name = first[1]
    return (
        f"{standing.called(name)}'s turn: {standing.called(name)} {_has_had(standing, name)}; "
        f"you ({standing.called(owner)}) {_has_had(standing, owner, 'have')}"
    )


def _has_had(standing: Standing, owner: str, has: str = "has") -> str:
    return f"{has} had {standing.part_had(owner):.0%} of {standing.part_owed(owner):.0%} owed".replace("%", " %")
