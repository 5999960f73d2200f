"""Event logs: every event that reached the scheduler, one JSON object a line, and how to replay them.

A log is enough to see again every decision that a cluster took: a bug report is a file.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL, Abilities
from prefect_gpu.scheduling.model.codec import build, fields_of, plain
from prefect_gpu.scheduling.model.instructions import Instruction
from prefect_gpu.scheduling.scheduler import Scheduler, SchedulingError

_EVENTS: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(ev.Event)}


def header(profile: str, abilities: Abilities = NOTHING_SPECIAL) -> str:
    """The first line of a log: which profile decided, and what the outside world could carry out."""
    return json.dumps({"profile": profile, "abilities": dataclasses.asdict(abilities), "version": 2})


def encode(event: ev.Event, now: float) -> str:
    """One line of a log."""
    return json.dumps({"now": now, **_named(event)}, default=plain)


def _named(event: ev.Event) -> dict[str, Any]:
    if isinstance(event, ev.Together):
        return {"event": "Together", "events": [_named(one) for one in event.events]}
    return {"event": type(event).__name__, **fields_of(event)}


def decode(line: str) -> tuple[ev.Event, float]:
    """The event and the time of one line.

    Raises:
        ValueError: The line is no event of this version.
    """
    try:
        data = json.loads(line)
        now = float(data.pop("now"))
        return _event(data), now
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not an event of this version of prefect-gpu: {line[:120]!r} ({error})") from error


def _event(data: dict[str, Any]) -> ev.Event:
    cls = _EVENTS[data.pop("event")]
    if cls is ev.Together:
        return ev.Together(tuple(_event(one) for one in data["events"]))
    event: ev.Event = build(cls, data)
    return event


def replay(lines: Iterable[str]) -> Iterator[tuple[float, ev.Event, list[Instruction]]]:
    """Feed a log to a fresh scheduler.

    Yields:
        (time, event, instructions) for each line.

    Raises:
        ValueError: A line cannot be read; the message carries its number.
    """
    scheduler: Scheduler | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if scheduler is None:
                head = json.loads(line)
                scheduler = Scheduler(str(head["profile"]), build(Abilities, head.get("abilities", {})))
                continue
            event, now = decode(line)
        except (ValueError, KeyError, TypeError) as error:
            what = error if scheduler else f"no header of an event log: {line[:120].strip()!r} ({error})"
            raise ValueError(f"line {number}: {what}") from error
        try:
            yield now, event, scheduler.handle(event, now)
        except SchedulingError as failed:  # as it was then
            yield now, event, failed.instructions
