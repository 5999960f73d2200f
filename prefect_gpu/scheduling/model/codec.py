"""Dataclasses as plain JSON, and back: what the event log and the records of launches are written with."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from enum import Enum
from typing import Any

_hints = functools.cache(typing.get_type_hints)  # each takes longer than all else that is done for a line


def plain(value: Any) -> Any:
    """What JSON does not know by itself, for ``json.dumps(..., default=plain)``; what is no dataclass becomes text."""
    if isinstance(value, Enum):
        return value.value
    return fields_of(value) if dataclasses.is_dataclass(value) else str(value)


def fields_of(value: Any) -> dict[str, Any]:
    """One level of `dataclasses.asdict`, which would copy everything that is in it."""
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def build(annotation: Any, value: Any) -> Any:
    """Turn plain JSON back into what an annotation names. A field that is not there gets its default.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: The value is nothing of that kind.
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        return None if value is None else build(inner[0], value)
    if origin is tuple:
        items = typing.get_args(annotation)
        if items[-1] is not Ellipsis:
            return tuple(build(item, element) for item, element in zip(items, value, strict=True))
        return tuple(build(items[0], element) for element in value)
    if origin is not None or not isinstance(annotation, type):
        return value
    if issubclass(annotation, Enum):
        return annotation(value)
    if issubclass(annotation, tuple) and annotation is not tuple:  # a NamedTuple
        return annotation(*value)
    if dataclasses.is_dataclass(annotation):
        hints = _hints(annotation)
        return annotation(**{name: build(hints[name], item) for name, item in value.items()})
    return value
