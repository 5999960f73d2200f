"""How fast jobs are alone, by how many nodes they are spread over."""

from __future__ import annotations

from collections.abc import Mapping

from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.interference.spreading import Spreads, can_spread, pieces, widths
from prefect_gpu.scheduling.model.jobs import Request


class Speeds(Spreads):
    """Speeds of jobs alone, by how they are spread.

    Args:
        measured: Speed in any unit by model, devices and number of nodes. A job whose model and devices are among them
            goes on a number of nodes that was measured; its estimate is taken to be for the fewest of these.
        fewest: Whether a job goes on more nodes than would hold it only if it is measured to be faster there.

    Raises:
        ValueError: A speed is not positive.
    """

    def __init__(self, measured: Mapping[Key, float] | None = None, *, fewest: bool = False) -> None:
        self._fewest = fewest
        self._by_width: dict[tuple[str, int], dict[int, float]] = {}
        for key, speed in sorted((measured or {}).items()):
            if not speed > 0:
                raise ValueError(f"speed of {key} is {speed}: give the measured one, above 0")
            self._by_width.setdefault((key.model, key.gpus), {})[key.nodes] = speed

    def widths(self, request: Request, nodes: int) -> tuple[int, ...]:
        """Numbers of nodes to spread a job over, the most preferred first; none if it cannot be spread."""
        measured = self._by_width.get((request.kind, request.total_gpus))
        if not measured or not can_spread(request):
            return super().worthwhile(request, nodes, 0)
        return tuple(width for width in widths(request, sorted(measured, reverse=True)) if width <= nodes)

    def worthwhile(self, request: Request, nodes: int, largest_node: int) -> tuple[int, ...]:
        """As :meth:`widths`; with ``fewest``, without more nodes than would hold the job if it is no faster there.

        On more of them it meets more others, and two that hold the same nodes by halves keep each other from ever
        getting a whole one.

        Args:
            largest_node: Devices of the largest node.
        """
        found = self.widths(request, nodes)
        measured = self._by_width.get((request.kind, request.total_gpus))
        if not measured or not self._fewest:
            return found
        count, size = pieces(request)
        fewest = min((width for width in found if count // width * size <= largest_node), default=0)
        faster = measured.get(fewest, 0.0)
        return tuple(w for w in found if w == fewest or (w > fewest and measured[w] > faster))

    def knows(self, key: Key) -> bool:
        """Whether a job is measured on some number of nodes: it goes on no other."""
        return (key.model, key.gpus) in self._by_width

    def stretch(self, key: Key) -> float:
        """By which factor a job takes longer on so many nodes than on the fewest that were measured, both alone."""
        measured = self._by_width.get((key.model, key.gpus))
        if not measured or key.nodes not in measured:
            return 1.0
        return measured[min(measured)] / measured[key.nodes]
