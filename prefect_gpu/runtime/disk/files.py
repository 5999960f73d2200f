"""Small JSON files that are read after anything: a power loss, a broken disk, a worker of another version."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


class UnreadableError(ValueError):
    """A file, or a part of it, is not what it should be; the message says why."""


def read(kind: type[T], path: Path, say: Callable[[str], object]) -> T | None:
    """Read a dataclass from its file. Fields that it does not have are ignored: a newer version wrote them.

    Args:
        say: Told of a file that is there and cannot be read.

    Returns:
        None if the file is not there, or cannot be read.
    """
    try:
        return build(kind, load(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnreadableError as error:
        say(f"{path} cannot be read, and counts as absent: {error}.")
        return None


def load(path: Path) -> Any:
    """What is in a JSON file.

    Raises:
        UnreadableError: It cannot be read, or holds no JSON.
        FileNotFoundError, NotADirectoryError: It is not there.
    """
    try:
        content = path.read_bytes()
        return json.loads(content, parse_constant=_no_number, parse_float=_finite)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        why = "it is empty, as after a power loss" if isinstance(error, ValueError) and not content else error
        raise UnreadableError(str(why)) from error


def build(kind: Any, value: Any) -> Any:
    """Turn plain JSON into what an annotation names.

    Raises:
        UnreadableError: It is nothing of that kind.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UnreadableError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is too large a number")
    return number
