"""CUDA_VISIBLE_DEVICES, read as CUDA reads it: what the person who started the worker wants it to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Visibility:
    """Which devices may be used.

    Attributes:
        entries: Indices and UUIDs (or beginnings of UUIDs) in order; None where the variable is not set.
    """

    entries: tuple[str, ...] | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Visibility:
        """Read the variable.

        Example:
            >>> Visibility.from_environment({"CUDA_VISIBLE_DEVICES": "1, GPU-8f,-1,2"}).entries
            ('1', 'GPU-8f')
        """
        text = environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return cls()
        entries: list[str] = []
        for entry in (part.strip() for part in text.split(",")):
            # CUDA ignores everything from the first invalid entry on; "-1", "" and "NoDevFiles" are how it is
            # told to stop.
            if not entry.isdigit() and not entry.upper().startswith(("GPU-", "MIG-")):
                break
            if entry not in entries:
                entries.append(entry)
        return cls(tuple(entries))

    @property
    def hides_all(self) -> bool:
        """The variable is set and names no device: somebody wants no GPU to be used."""
        return self.entries == ()

    @property
    def indices(self) -> frozenset[int] | None:
        """The GPU numbers that may be used, where the entries are numbers only; None where that is not known."""
        if self.entries is None or not all(entry.isdigit() for entry in self.entries):
            return None
        return frozenset(int(entry) for entry in self.entries)

    def positions(self, index: int, uuids: Sequence[str]) -> list[int]:
        """Where the entries name a device: by its index, by its UUID, or by the UUID of the GPU it is a part of."""
        if self.entries is None:
            return [0]
        return [
            position
            for position, entry in enumerate(self.entries)
            if (entry.isdigit() and int(entry) == index)
            or any(uuid.upper().startswith(entry.upper()) for uuid in uuids)
        ]
