"""Throughput by GPUs, by placement, by GPU kind, by cores, and by pair, on published tables.

Each table is fitted from a few of its measurements and asked for the others. Which few is a fixed rule, and where a
prior from other programs is used, no measurement of the program itself is in it.

    from benchmarks.estimation_public import claims_and_tables

The tables are public: pkusys/ElasticFlow (throughput tables, Pollux traces), msr-fiddle/synergy,
stanford-futuredata/gavel and gajagajago/deepshare.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._claims import Claim, at_most
from prefect_gpu.estimation.runs import Interval
from prefect_gpu.estimation.sensitivity import Party, Sensitivity
from prefect_gpu.estimation.throughput import NO_PRIOR, Prior, Setup, Throughput, Tried, learn_prior

RULE = (1, 4, 16)  # measured GPU counts of the claim; the other rules are for comparison
OTHER_RULES = ((1, 8, 64), (1, 4, 64), (2, 8, 32), (1, 2, 4))
GPUS_PER_NODE = {"A100": 8, "T4": 4}
MEDIAN_ERROR = 0.10
PLACEMENTS_TRIED = {  # (GPUs, nodes); on this cluster two full nodes are slower than three or four
    "1 GPU, a full node, 1 on each of 4": ((1, 1), (4, 1), (4, 4)),
    "1 GPU, a full node, three full nodes": ((1, 1), (4, 1), (12, 3)),
    "1 GPU, a full node, two full nodes": ((1, 1), (4, 1), (8, 2)),
}
CORES_TRIED = (1, 4, 9)

Program = tuple[str, str]  # GPU kind, model


def claims_and_tables(traces: Path, quick: bool = False) -> tuple[list[Claim], dict[str, Any]]:
    """All of it.

    Args:
        traces: Folder of the published tables.
        quick: Fewer draws, fewer rules.

    Returns:
        The claims, and for each table its figures.
    """
    gpus = by_gpus(traces / "pkusys-ElasticFlow", quick)
    ours = gpus["rules"][shown(RULE)]
    claims = [
        at_most("throughput, each curve alone from 3 GPU counts: median error", ours["alone"]["median"], MEDIAN_ERROR),
        at_most("throughput, with other programs: median error", ours["with_others"]["median"], MEDIAN_ERROR),
    ]
    tables = {
        "throughput_by_gpus": gpus,
        "throughput_by_placement": by_placement(traces / "pkusys-ElasticFlow" / "pollux_traces", quick),
        "throughput_by_kind": by_kind(traces / "stanford-futuredata-gavel"),
        "throughput_by_cores": by_cores(traces / "msr-fiddle-synergy" / "cpu_mem_sensitivity.csv"),
        "contention_by_pair": by_pair(traces, quick),
    }
    return claims, tables


def shown(rule: Sequence[int]) -> str:
    """A rule as text: ``"1, 4, 16"``."""
    return ", ".join(map(str, rule))


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


# By GPUs ---------------------------------------------------------------------------------------------


def gpu_tables(folder: Path) -> dict[Program, dict[float, list[Tried]]]:
    """By program and batch size, the rates on 1 to 64 GPUs. Where a table has 0 or nothing, it could not run."""
    found: dict[Program, dict[float, list[Tried]]] = {}
    for kind, per_node in GPUS_PER_NODE.items():
        for path in sorted((folder / f"throughputs_{kind}").glob("*.csv")):
            curves = found[kind, path.stem] = {}
            for row in _rows(path):
                batch = float(row.pop("global_batch_size"))
                rates = {int(gpus): float(rate) for gpus, rate in row.items() if rate}
                curves[batch] = [
                    Tried(Setup(gpus, -(-gpus // per_node), kind, batch), rate)
                    for gpus, rate in rates.items()
                    if rate > 0 and math.isfinite(rate)
                ]
    return found


def split(curve: Sequence[Tried], rule: Sequence[int]) -> tuple[list[Tried], list[Tried]]:
    """What is measured and what is asked. A curve without the rule's counts gives its first, middle and last."""
    counts = [one.setup.gpus for one in curve]
    if not set(rule) <= set(counts):
        rule = (counts[0], counts[len(counts) // 2], counts[-1])
    return [one for one in curve if one.setup.gpus in rule], [one for one in curve if one.setup.gpus not in rule]


def by_gpus(folder: Path, quick: bool = False) -> dict[str, Any]:
    """Every curve from three of its GPU counts: alone, with other programs, with all its batch sizes, with both.

    Programs of the same model on the other kind of GPU are not among the others. For comparison, a parabola through the
    three in logarithms, which knows nothing of nodes and has no interval.
    """
    tables = gpu_tables(folder)
    priors = {
        program: learn_prior(
            [one for curve in curves.values() for one in curve]
            for other, curves in tables.items()
            if other[1] != program[1]
        )
        for program in tables
    }
    rules: dict[str, Any] = {}
    for rule in (RULE, *(() if quick else OTHER_RULES)):
        rules[shown(rule)] = {
            "parabola": _parabola(tables, rule),
            "alone": _asked(tables, rule, {}, together=False)[0].summary(),
            "with_others": _asked(tables, rule, priors, together=False)[0].summary(),
            "all_batches": _asked(tables, rule, {}, together=True)[0].summary(),
            "all_batches_with_others": _asked(tables, rule, priors, together=True)[0].summary(),
        }
    programs = _asked(tables, RULE, {}, together=False)[1]
    return {
        "rules": rules,
        "alone_by_program": {f"{m} on {k}": round(float(np.median(e)), 4) for (k, m), e in programs.items()},
        "curves": sum(map(len, tables.values())),
    }


def _asked(
    tables: Mapping[Program, Mapping[float, Sequence[Tried]]],
    rule: Sequence[int],
    priors: Mapping[Program, Prior],
    together: bool,
) -> tuple[Errors, dict[Program, list[float]]]:
    errors, programs = Errors(), defaultdict(list)
    for program, curves in tables.items():
        parts = [split(curve, rule) for curve in curves.values()]
        if together:
            parts = [([one for part in parts for one in part[0]], [one for part in parts for one in part[1]])]
        for measured, rest in parts:
            function = Throughput(measured, priors.get(program, NO_PRIOR))
            for predicted, one in zip(function.predict_all([one.setup for one in rest]), rest, strict=True):
                programs[program].append(errors.add(predicted, one.steps_per_s))
    return errors, programs


def _parabola(tables: Mapping[Program, Mapping[float, Sequence[Tried]]], rule: Sequence[int]) -> dict[str, float]:
    errors = Errors()
    for curves in tables.values():
        for curve in curves.values():
            measured, rest = split(curve, rule)
            counts = np.log([one.setup.gpus for one in measured])
            through = np.polyfit(counts, np.log([one.steps_per_s for one in measured]), 2)
            for one in rest:
                guess = math.exp(float(np.polyval(through, math.log(one.setup.gpus))))
                errors.add(Interval(guess, guess, guess), one.steps_per_s)
    figures = errors.summary()
    del figures["coverage"]
    return figures


# By placement ----------------------------------------------------------------------------------------


def placement_tables(folder: Path) -> dict[str, list[Tried]]:
    """By model: rates by placement, whose digits are the GPUs on each node, at the middle of the batch sizes."""
    found = {}
    for path in sorted(folder.glob("*/placements.csv")):
        rows = _rows(path)
        batches = sorted({int(row["local_bsz"]) for row in rows})
        local = batches[len(batches) // 2]
        found[path.parent.name] = [
            Tried(
                Setup(gpus, len(row["placement"]), "T4", float(gpus * local)),
                1.0 / float(row["step_time"]),
            )
            for row in rows
            if int(row["local_bsz"]) == local and (gpus := sum(map(int, row["placement"])))
        ]
    return found


def by_placement(folder: Path, quick: bool = False) -> dict[str, Any]:
    """All placements of 16 GPUs on 4 nodes or fewer, from three of them and what other models do."""
    tables = placement_tables(folder)
    priors = {
        model: learn_prior(tried for other, tried in tables.items() if other != model) for model in sorted(tables)
    }
    results: dict[str, Any] = {}
    for name, wanted in PLACEMENTS_TRIED.items():
        errors, models = Errors(), {}
        for model, prior in priors.items():
            tried = [(one, (one.setup.gpus, one.setup.nodes) in wanted) for one in tables[model]]
            function = Throughput([one for one, measured in tried if measured], prior)
            rest = [one for one, measured in tried if not measured]
            predicted = function.predict_all([one.setup for one in rest])
            off = [errors.add(guess, one.steps_per_s) for guess, one in zip(predicted, rest, strict=True)]
            models[model] = round(float(np.median(off)), 4)
        results[name] = {**errors.summary(), "by_model": models}
        if quick:
            break
    return results


# By GPU kind -----------------------------------------------------------------------------------------


def by_kind(folder: Path) -> dict[str, Any]:
    """Steps per second on a kind of GPU that a program has not been on, from the one that it has, and others' ratios.

    The naive value is the geometric mean of the others' ratios. Others are all models but the program's own.
    """
    table = json.loads((folder / "physical_cluster_throughputs.json").read_text())
    programs: dict[str, dict[str, float]] = defaultdict(dict)
    for kind in ("k80", "p100", "v100"):
        for job, beside in table[kind].items():
            name, gpus = ast.literal_eval(job)
            if gpus == 1 and beside["null"] > 0:
                programs[name][kind] = beside["null"]
    known = {name: rates for name, rates in programs.items() if len(rates) == 3}
    models = {name: name.split(" (")[0] for name in known}
    priors = {
        model: learn_prior(
            [Tried(Setup(kind=kind), rate) for kind, rate in rates.items()]
            for name, rates in known.items()
            if models[name] != model
        )
        for model in set(models.values())
    }
    results: dict[str, Any] = {}
    for source, target in (("p100", "v100"), ("k80", "v100"), ("k80", "p100"), ("v100", "k80")):
        errors, naive = Errors(), []
        for name, rates in known.items():
            function = Throughput([Tried(Setup(kind=source), rates[source])], priors[models[name]])
            errors.add(function.predict(Setup(kind=target)), rates[target])
            ratios = [r[target] / r[source] for other, r in known.items() if models[other] != models[name]]
            guess = rates[source] * math.exp(float(np.mean(np.log(ratios))))
            naive.append(abs(guess / rates[target] - 1.0))
        results[f"{target} from {source}"] = {**errors.summary(), "naive_median": round(float(np.median(naive)), 4)}
    return results


# By cores --------------------------------------------------------------------------------------------


def by_cores(path: Path) -> dict[str, Any]:
    """CODA's curve (§V.B), linear in the cores up to the peak and flat from there, from three core counts.

    At the most memory of each model only. On the flat part nothing can go wrong, so it is left out of one figure.
    """
    curves: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    memory: dict[tuple[str, str], float] = {}
    for row in _rows(path):
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


# By pair ---------------------------------------------------------------------------------------------

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


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
