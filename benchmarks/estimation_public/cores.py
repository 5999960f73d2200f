"""Throughput by CPU cores: CODA's curve from three core counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.estimation_public.figures import rows

CORES_TRIED = (1, 4, 9)


def by_cores(path: Path) -> dict[str, Any]:
    """CODA's curve (§V.B), linear in the cores up to the peak and flat from there, from three core counts.

    At the most memory of each model only. On the flat part nothing can go wrong, so it is left out of one figure.
    """
    curves: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    memory: dict[tuple[str, str], float] = {}
    for row in rows(path):
        key = (row["model"], row["gpus"])
        most, rate = float(row["mem_gb"]), float(row["relative_tput"])
        if most > memory.get(key, 0.0):
            memory[key], curves[key] = most, {}
        if most == memory[key] and rate > 0:
            curves[key][int(float(row["cpus"]))] = rate
    errors: list[float] = []
    rising: list[float] = []
    by_model = {}
    for (model, gpus), curve in sorted(curves.items()):
        tried = {cores: curve[cores] for cores in CORES_TRIED if cores in curve}
        if len(tried) < len(CORES_TRIED) or len(curve) <= len(tried):
            continue
        rest = [(n, rate, abs(cores_curve(tried, n) / rate - 1.0)) for n, rate in curve.items() if n not in tried]
        off = [error for _, _, error in rest]
        errors += off
        rising += [error for _, rate, error in rest if rate < 0.99 * max(curve.values())]
        by_model[f"{model}, {gpus} GPUs"] = round(float(np.median(off)), 4)
    return {
        "tried": list(CORES_TRIED),
        "median": round(float(np.median(errors)), 4),
        "p90": round(float(np.percentile(errors, 90)), 4),
        "median_below_the_peak": round(float(np.median(rising)), 4),
        "predictions": len(errors),
        "predictions_below_the_peak": len(rising),
        "by_model": by_model,
    }


def cores_curve(tried: Mapping[int, float], cores: int) -> float:
    """min(a·cores, flat): a from the fewest cores that were tried, flat the best that was seen."""
    least = min(tried)
    return min(tried[least] / least * cores, max(tried.values()))
