"""What can be sent to a pool as a flow's parameter: parameters travel as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from math import isfinite
from typing import Any

from prefect import Flow
from prefect.utilities.collections import visit_collection
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

_MASKED = "**********"  # what pydantic writes in the place of a secret

_LEAST, _MOST = -(2**63), 2**64 - 1  # what orjson, by which Prefect's server writes lists of runs, knows of integers


def must_be_sendable(flow: Flow[..., Any], parameters: dict[str, Any]) -> None:
    """Make sure that a run gets the parameters that its user gives. Prefect sends others in silence.

    Raises:
        TypeError: One is no JSON, or would not be what it was. The message names it, and says what to give.
    """
    sent = flow.serialize_parameters(parameters)
    for name, value in parameters.items():
        parts = _parts_of(value)
        vanishing = [part for part in parts if _vanishes(part)]
        kind = type(vanishing[0] if vanishing else value).__name__
        if vanishing or (sent.get(name) == f"<{kind}>" and not isinstance(value, str)):
            raise TypeError(
                f"{name}: this {kind} cannot be sent to the pool, because it is no JSON, or holds what is none. "
                "Give numbers, text, dates, lists, dictionaries or pydantic models, or the path of a file with it."
            )
        told = _parts_of(sent.get(name))
        if any(isinstance(one, float) and not isfinite(one) for one in told):
            raise TypeError(
                f"{name}: NaN and infinity cannot be sent to the pool, because they are no JSON: the run would get "
                "None. Give a finite number, or None; or text such as 'inf', where the flow calls float() of it."
            )
        if any(isinstance(one, int) and not _LEAST <= one <= _MOST for one in told):
            raise TypeError(
                f"{name}: an integer of more than 64 bits cannot be sent to the pool, because Prefect cannot list runs "
                "that have one. Give it as text, and let the flow call int() of it."
            )
        if any(isinstance(one, str) and _is_no_unicode(one) for one in told):
            raise TypeError(
                f"{name}: text that is no Unicode cannot be sent to the pool. It may be the name of a file from "
                "another system: give the file another name."
            )
        if _MASKED in told and any(isinstance(one, (Secret, SecretBytes, SecretStr)) for one in parts):
            raise TypeError(
                f"{name}: a secret cannot be sent to the pool: the run would get {_MASKED!r}. Give the name of a "
                "block that has it, and let the flow load the block."
            )


def _parts_of(value: Any) -> list[Any]:
    """A value, and all that it holds."""
    found = []

    def note(part: Any) -> Any:
        found.append(part)
        return part

    visit_collection(value, note)
    return found


def _is_no_unicode(text: str) -> bool:
    """Whether it has half of a surrogate pair. Python puts some into names of files whose bytes it does not know."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _vanishes(part: Any) -> bool:
    """Whether Prefect sends ``{}`` for it, as for functions and open files, or ``[]``, as for generators used up."""
    if isinstance(part, BaseModel) or is_dataclass(part):
        return False
    return callable(part) or (isinstance(part, Iterator) and not isinstance(part, list))


__all__ = ["must_be_sendable"]
