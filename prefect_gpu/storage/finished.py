"""From the history to the learning side: a row becomes a finished run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping

from prefect_gpu.estimation import runs as r
from prefect_gpu.estimation.interference.network import Communication
from prefect_gpu.estimation.runs import FinishedRun, Known
from prefect_gpu.estimation.slow_devices import StepSample
from prefect_gpu.estimation.submission import MAX_GPUS, RESUMED_AT, SHARES, SPEEDS, declared_of
from prefect_gpu.estimation.throughput.speeds import apart_of, speeds_of
from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.state.asked import GIB, AskedType
from prefect_gpu.storage.row import ContentionRow, HistoryRow

_MOST_DEVICES = 1024  # of one node
_LONGEST_S = 10 * 365 * 86_400.0
_USE_TOLD_S = (
    10.0  # of training, before its use of a GPU is believed: NVML looks back over a second, and tells 0 at first
)


def step_samples(rows: Iterable[HistoryRow]) -> list[StepSample]:
    """How long the steps of runs took that had a device for themselves, in the rows' order."""
    found = []
    for row in rows:
        steps, trained_s = _number(row.steps_done), _number(row.trained_s)
        alone = len(row.devices) == 1 and not row.slowdowns and not row.features.get(SHARES)
        if row.outcome == "completed" and alone and steps and trained_s and not _resumed_at(row.features):
            alike = json.dumps([row.flow_name, row.parameters, row.device_kind], sort_keys=True, default=str)
            found.append(StepSample(row.devices[0], alike, trained_s / steps))
    return found


def finished_run(row: HistoryRow) -> FinishedRun | None:
    """What a row of the history teaches; None if that is nothing. Absurd values are left out; nothing here raises."""
    completed = row.outcome == "completed"
    out_of_memory = row.out_of_memory
    steps = _number(row.steps_done)
    measured: dict[str, float] = {}
    memory = _number(row.device_memory_peak_bytes)
    if memory is None and (row.virtual or not row.devices):
        memory = _number(row.rss_peak_bytes)
    elif memory is not None and row.devices:
        memory = memory / max(1, len(row.places[0][1]))  # it is the first instance that reports
    if completed or out_of_memory:
        _put(measured, r.MEMORY_BYTES, memory, 2.0**60)
    if completed:
        _put(measured, r.LAUNCHING_S, row.prepared_s, _LONGEST_S)
        _put(measured, r.TRAINING_S, row.trained_s, _LONGEST_S)
        _put(measured, r.SAVING_S, row.saved_s, _LONGEST_S)
        if row.trained_s is None or measured.get(r.TRAINING_S, 0.0) >= _USE_TOLD_S:
            _put(measured, r.UTILISATION, row.device_util_mean, 1.0)
            _put(measured, r.UTILISATION_STD, row.device_util_std, 1.0)
        _put(measured, r.NETWORK_BYTES_PER_S, row.net_mean_bytes_per_s, 1e13)
        _put(measured, r.CPU_CORES, row.cpu_mean, 1e5)
        if steps is not None and steps > 0 and r.TRAINING_S in measured:
            _put_step(measured, steps, _resumed_at(row.features))
    if not measured:
        return None
    gpus, ended_at = _gpus(row), _number(row.ended_at)
    known = Known(
        str(row.flow_name),
        row.parameters if isinstance(row.parameters, Mapping) else {},
        declared_of(row.features) if isinstance(row.features, Mapping) else {},
        gpus=1 if gpus is None else gpus,
        cpus=_number(row.requested_cpus),
        category=row.category,
        device_kind=row.device_kind,
        named=_named(row.features),
    )
    ended = 0.0 if ended_at is None else ended_at
    kept = row.features.get(SPEEDS) if isinstance(row.features, Mapping) else None
    return FinishedRun(
        row.run_id,
        known,
        measured,
        completed,
        out_of_memory,
        ended,
        None if steps is None else int(steps),
        _pace(row.pace),
        speeds_of(kept),
        apart_of(kept),
        len({node for node, devices in row.places if devices}) or 1,
    )


def _gpus(row: HistoryRow) -> float | None:
    """Devices of each instance. An elastic run asks for the fewest that it accepts: what it had last counts.

    Of an elastic gang, the devices of all instances count, as its speed is known by their number.
    """
    asked = _number(row.requested_gpus)
    elastic = isinstance(row.features, Mapping) and MAX_GPUS in row.features
    return float(len(row.devices)) if row.devices and (elastic or not row.parts) and asked != 0 else asked


def _named(features: object) -> tuple[str, ...]:
    named = features.get("named") if isinstance(features, Mapping) else None
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list | tuple) else ()


def _resumed_at(features: object) -> float:
    first = _number(features.get(RESUMED_AT)) if isinstance(features, Mapping) else None
    return 0.0 if first is None else max(0.0, first)


def _put_step(measured: dict[str, float], steps: float, first: float) -> None:
    """The time of one step; of a restored run, whose time since then was measured, also that of all its steps."""
    trained_s = measured[r.TRAINING_S]
    if first > 0:
        del measured[r.TRAINING_S]
        if steps <= first or trained_s <= 0:
            return
        _put(measured, r.TRAINING_S, trained_s / (steps - first) * steps, _LONGEST_S)
    _put(measured, r.STEP_S, trained_s / (steps - first), _LONGEST_S)


def _pace(noted: object) -> dict[int, float]:
    """When the marks were passed; nothing if a mark is missing, or time went backwards between two."""
    if not isinstance(noted, Mapping):
        return {}
    pace = {mark: seconds for mark in r.MARKS if (seconds := _number(noted.get(str(mark)))) is not None}
    times = [0.0, *pace.values()]
    return pace if len(pace) == len(r.MARKS) and times == sorted(times) and times[-1] > 0 else {}


def _put(measured: dict[str, float], target: str, value: object, most: float) -> None:
    number = _number(value)
    if number is not None and 0 <= number <= most:
        measured[target] = number


def _number(value: object) -> float | None:
    """A finite number, or None: SQLite keeps a text in a column of numbers, if somebody wrote one there."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def communication(row: HistoryRow) -> Communication | None:
    """What a row teaches of how its program communicates; None if that is nothing."""
    nodes = len({node for node, devices in row.places if devices})
    if row.outcome != "completed" or not nodes:
        return None
    trained_s, steps = _number(row.trained_s), _number(row.steps_done)
    done = None if steps is None else steps - _resumed_at(row.features)
    declared = row.features.get("features") if isinstance(row.features, Mapping) else None
    comm_to_comp = _number(declared.get("comm_to_comp")) if isinstance(declared, Mapping) else None
    network = _number(row.net_mean_bytes_per_s)
    return Communication(
        Key(str(row.flow_name), len(row.devices), nodes),
        step_s=trained_s / done if trained_s and done and done > 0 else None,
        bytes_per_s=network if network is not None and network >= 0 else None,
        batch_size=_number(row.features.get("batch_size")) if isinstance(row.features, Mapping) else None,
        comm_to_comp=comm_to_comp if comm_to_comp is not None and comm_to_comp >= 0 else None,
    )


def measured_pairs(rows: Iterable[ContentionRow]) -> tuple[tuple[Key, Key, float], ...]:
    """What runs on several nodes did to each other.

    Returns:
        (the program as it was placed, the one beside it, its speed alone ÷ its speed beside that one), in the order
        of the rows.
    """
    return tuple(
        (Key(row.program, row.gpus, row.nodes), Key(row.beside, row.beside_gpus, row.beside_nodes), row.slowdown)
        for row in rows
    )


def asked_types(rows: Iterable[HistoryRow]) -> tuple[tuple[AskedType, int], ...]:
    """What runs asked for, and how many for the same: of each run that needed devices, and was no gang."""
    counts: Counter[AskedType] = Counter()
    for row in rows:
        gpus, memory = _number(row.requested_gpus), _number(row.requested_gpu_memory_bytes)
        if row.parts or gpus is None or not 1 <= gpus <= _MOST_DEVICES:
            continue
        gib = -(-int(memory) // GIB) if memory is not None and memory > 0 else 0
        shares = isinstance(row.features, Mapping) and row.features.get(SHARES) is True
        counts[AskedType(int(gpus), gib, shares)] += 1
    return tuple(sorted(counts.items()))


def newest_slowdowns(rows: Iterable[HistoryRow]) -> tuple[tuple[str, str, float], ...]:
    """What programs did to each other on a device, as far as it was measured, by the newest run of each pair.

    Args:
        rows: The newest first.

    Returns:
        (program, the one beside it, its speed alone ÷ its speed beside that one).
    """
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        for beside, slowdown in row.slowdowns.items() if isinstance(row.slowdowns, Mapping) else ():
            number = _number(slowdown)
            if number is not None and number > 0:
                found.setdefault((str(row.flow_name), str(beside)), number)
    return tuple((program, beside, slowdown) for (program, beside), slowdown in sorted(found.items()))
