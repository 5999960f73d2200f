"""Contention by pair: ratios that are held out at random."""

from __future__ import annotations

import ast
import csv
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from prefect_gpu.estimation.interference.sensitivity import Party, Sensitivity

Pairs = list[tuple[Party, Party, float]]


def deepshare_pairs(folder: Path) -> Pairs:
    """The 36 × 36 throughput ratios on a shared network; a party is a model with its GPUs and nodes."""
    with (folder / "jobs" / "shared_thp_ratio.csv").open(newline="") as file:
        header, *rows = csv.reader(file)

    def party(key: str) -> Party:
        model, gpus, nodes = key.split(",")
        return Party(model, (int(gpus), int(nodes)))

    return [
        (party(row[0]), party(other), float(ratio))
        for row in rows
        for other, ratio in zip(header[1:], row[1:], strict=True)
    ]


def gavel_pairs(folder: Path, kind: str) -> Pairs:
    """The throughput ratios on a shared GPU; a party is a model with its batch size."""
    table = json.loads((folder / "physical_cluster_throughputs.json").read_text())[kind]
    found = []
    for own, beside in table.items():
        for other, rates in beside.items():
            if other == "null" or not rates[0] > 0 or not beside["null"] > 0:
                continue
            (name, gpus), (other_name, other_gpus) = ast.literal_eval(own), ast.literal_eval(other)
            if gpus == other_gpus == 1:
                parties = [Party(text.split(" (")[0], text) for text in (name, other_name)]
                found.append((parties[0], parties[1], min(1.0, rates[0] / beside["null"])))
    return found


def by_pair(traces: Path, quick: bool = False) -> dict[str, Any]:
    """Absolute errors of ratios held out at random, against the mean of all and each program's own mean."""
    tables = {"deepshare": deepshare_pairs(traces / "gajagajago-deepshare")}
    for kind in ("v100",) if quick else ("k80", "p100", "v100"):
        tables[f"gavel {kind}"] = gavel_pairs(traces / "stanford-futuredata-gavel", kind)
    shares = (0.3,) if quick else (0.05, 0.1, 0.3, 0.7)
    results: dict[str, Any] = {}
    for name, pairs in tables.items():
        results[name] = {f"{share:.0%} measured": held_out(pairs, share, range(1 if quick else 3)) for share in shares}
    return results


def held_out(pairs: Pairs, share: float, seeds: Iterable[int]) -> dict[str, float]:
    """Mean absolute errors on the pairs that were not measured, over draws of those that were."""
    ours: list[float] = []
    mean: list[float] = []
    own: list[float] = []
    hits: list[float] = []
    for seed in seeds:
        drawn = random.Random(seed).sample(pairs, len(pairs))
        measured, rest = drawn[: round(share * len(drawn))], drawn[round(share * len(drawn)) :]
        learned = Sensitivity()
        of: dict[Party, list[float]] = defaultdict(list)
        for program, neighbour, ratio in measured:
            learned.observe(program, [neighbour], ratio)
            of[program].append(ratio)
        everyone = float(np.mean([ratio for _, _, ratio in measured]))
        for program, neighbour, ratio in rest:
            predicted = learned.predict(program, neighbour)
            ours.append(abs(predicted.median - ratio))
            hits.append(predicted.low <= ratio <= predicted.high)
            mean.append(abs(everyone - ratio))
            own.append(abs(float(np.mean(of[program])) - ratio) if program in of else mean[-1])
    figures = {"error": ours, "mean_of_all": mean, "mean_of_program": own, "coverage": hits}
    return {name: round(float(np.mean(values)), 4) for name, values in figures.items()}
