"""How large the kit's trainings are: so that a GPU has something to do, and a CPU is not overwhelmed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._claims import Claim
from benchmarks._host.drivers import WarmDriver
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.pool import KitPool


@dataclass(frozen=True)
class Scale:
    """Sizes and counts of one run of the kit.

    Attributes:
        machine: What is measured.
        folder: For files that nobody needs afterwards.
        driver: Starts the trainings.
        quick: About a minute, with fewer trainings: it shows that everything works.
        rounds: How often everything is compared.
    """

    machine: Machine
    folder: Path
    driver: WarmDriver
    quick: bool
    rounds: int

    def pool(self, name: str, **more: Any) -> KitPool:
        """A pool of its own; see :class:`.KitPool`."""
        return KitPool(self.machine, self.folder / name.replace(" ", ""), self.driver, **more)

    def cnn(self, steps: int, **more: Any) -> dict[str, Any]:
        """A small convolutional network, some tenths of a second a step."""
        if self.machine.virtual:
            return {"steps": steps, "batches": 4, "batch": 32, "width": 8, "rows": 2000, **more}
        rows = 4_000 if self.quick else 20_000  # to make them up is most of launching
        return {"steps": steps, "batches": 40, "batch": 256, "width": 32, "rows": rows, **more}

    def neumf(self, steps: int, **more: Any) -> dict[str, Any]:
        """A NeuMF-like recommender, some tenths of a second a step."""
        if self.machine.virtual:
            return {"steps": steps, "batches": 4, "batch": 1024, "users": 4000, "width": 16, **more}
        return {"steps": steps, "batches": 60, "batch": 16_384, "users": 200_000, "width": 64, **more}


@dataclass(frozen=True)
class Part:
    """What one part of the kit found.

    Attributes:
        figures: Everything that was measured, for the JSON.
        words: The same in a few lines, for people.
    """

    claims: list[Claim]
    figures: dict[str, Any]
    words: list[str]
