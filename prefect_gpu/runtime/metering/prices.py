"""What an hour of a device costs, as the operator says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Stated = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Prices:
    """Prices of one device for one hour, in whatever currency the operator counts in.

    Attributes:
        by_kind: By a part of the name of a kind of device, such as ``H100`` for an ``NVIDIA H100 80GB HBM3``; where
            several fit, the longest counts. ``""`` fits all kinds.

    Example:
        >>> Prices.of({"H100": 2.5, "": 0.4}).per_hour("NVIDIA H100 80GB HBM3")
        2.5
    """

    by_kind: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, stated: Stated) -> Prices:
        """One price for all kinds, a price by kind, or none."""
        if stated is None:
            return cls()
        return cls(dict(stated) if isinstance(stated, Mapping) else {"": float(stated)})

    def per_hour(self, kind: str) -> float | None:
        """The price of a device of this kind; None: nobody has said it."""
        fits = [name for name in self.by_kind if name.casefold() in kind.casefold()]
        return self.by_kind[max(fits, key=len)] if fits else None
