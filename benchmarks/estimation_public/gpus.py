"""Throughput by GPUs, by placement and by kind of GPU: a few of a table's entries are measured, the others asked."""

from __future__ import annotations

import ast
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.estimation_public.figures import Errors, rows
from prefect_gpu.estimation.runs import Interval
from prefect_gpu.estimation.throughput import NO_PRIOR, Prior, Setup, Throughput, Tried, learn_prior

RULE = (1, 4, 16)  # measured GPU counts of the claim; the other rules are for comparison
OTHER_RULES = ((1, 8, 64), (1, 4, 64), (2, 8, 32), (1, 2, 4))
GPUS_PER_NODE = {"A100": 8, "T4": 4}
PLACEMENTS_TRIED = {  # (GPUs, nodes); on this cluster two full nodes are slower than three or four
    "1 GPU, a full node, 1 on each of 4": ((1, 1), (4, 1), (4, 4)),
    "1 GPU, a full node, three full nodes": ((1, 1), (4, 1), (12, 3)),
    "1 GPU, a full node, two full nodes": ((1, 1), (4, 1), (8, 2)),
}

Program = tuple[str, str]  # GPU kind, model


def shown(rule: Sequence[int]) -> str:
    """A rule as text: ``"1, 4, 16"``."""
    return ", ".join(map(str, rule))


def gpu_tables(folder: Path) -> dict[Program, dict[float, list[Tried]]]:
    """By program and batch size, the rates on 1 to 64 GPUs. Where a table has 0 or nothing, it could not run."""
    found: dict[Program, dict[float, list[Tried]]] = {}
    for kind, per_node in GPUS_PER_NODE.items():
        for path in sorted((folder / f"throughputs_{kind}").glob("*.csv")):
            curves = found[kind, path.stem] = {}
            for row in rows(path):
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


def placement_tables(folder: Path) -> dict[str, list[Tried]]:
    """By model: rates by placement, whose digits are the GPUs on each node, at the middle of the batch sizes."""
    found = {}
    for path in sorted(folder.glob("*/placements.csv")):
        table = rows(path)
        batches = sorted({int(row["local_bsz"]) for row in table})
        local = batches[len(batches) // 2]
        found[path.parent.name] = [
            Tried(
                Setup(gpus, len(row["placement"]), "T4", float(gpus * local)),
                1.0 / float(row["step_time"]),
            )
            for row in table
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
