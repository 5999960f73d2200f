"""What the tables' modules share: rows of a CSV, and how far predictions are off."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from prefect_gpu.estimation.runs import Interval


class Errors:
    """Relative errors and the intervals' hits, as they come in."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.hits: list[bool] = []

    def add(self, predicted: Interval, true: float) -> float:
        """Returns the relative error."""
        self.errors.append(abs(predicted.median / true - 1.0))
        self.hits.append(predicted.low <= true <= predicted.high)
        return self.errors[-1]

    def summary(self) -> dict[str, float]:
        """Median and 90th percentile of the errors, how often the 90 % intervals held, and how many there were."""
        return {
            "median": round(float(np.median(self.errors)), 4),
            "p90": round(float(np.percentile(self.errors, 90)), 4),
            "coverage": round(float(np.mean(self.hits)), 4),
            "predictions": len(self.errors),
        }


def rows(path: Path) -> list[dict[str, str]]:
    """A CSV file's rows by its header."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
