from __future__ import annotations

from typing import Any

from prefect_gpu.storage.history import HistoryRow
from prefect_gpu.storage.row import Part

BEGIN = 1_700_000_000.0


def finished(name: str, at: float, *, on: tuple[str, ...] = ("virtual-0",), **fields: Any) -> HistoryRow:
    """A run granted `on` at BEGIN + `at`: waited 2 s, prepared 1 s, trained 4 s, saved 1 s, ended 0.5 s later."""
    granted = BEGIN + at
    values: dict[str, Any] = {
        "submitted_at": granted - 2, "granted_at": granted, "waited_s": 2.0, "prepared_s": 1.0, "trained_s": 4.0,
        "saved_s": 1.0, "run_name": name, "node": "box", "virtual": bool(on) and on[0].startswith("virtual"),
    }  # fmt: skip
    values |= fields
    ended_at = values.pop("ended_at", granted + 6.5)
    outcome = values.pop("outcome", "completed")
    flow_name = values.pop("flow_name", "train")
    return HistoryRow(f"id-{name}", flow_name, outcome, ended_at=ended_at, devices=on, **values)


def a_gang(name: str, at: float, *parts: tuple[str, int], **fields: Any) -> HistoryRow:
    """A gang with an instance for each (node, devices there), numbered on; one without devices is a server."""
    counts: dict[str, int] = {}
    placed = []
    for node, count in parts:
        first = counts.get(node, 0)
        counts[node] = first + count
        devices = tuple(f"{node}/virtual-{number}" for number in range(first, first + count))
        placed.append(Part(node=node, devices=devices, role="worker" if count else "server"))
    on = tuple(device for part in placed for device in part["devices"])
    return finished(name, at, on=on, **{"node": parts[0][0], "parts": tuple(placed), "virtual": True} | fields)
