"""Reading JSON documents that hold traces and tables."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from pathlib import Path

from prefect_gpu.simulation.traces.job import TraceError
from prefect_gpu.simulation.traces.table import LARGEST, open_bytes


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file, gzipped or not. Raises TraceError for anything else, and for doubled keys."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise TraceError(path, None, "", key, "stands twice as a key", "give every job a key of its own.")
            found[key] = value
        return found

    try:
        with open_bytes(path) as file:
            document = json.loads(file.read().decode("utf-8-sig"), object_pairs_hook=unique)
    except TraceError:
        raise
    except json.JSONDecodeError as error:
        problem = f"is not JSON at character {error.colno} ({error.msg})"
        raise TraceError(path, error.lineno, "", None, problem, "copy the file again.") from None
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        # bytes that are no UTF-8, numbers of thousands of digits, brackets nested too deep, a damaged gzip file
        problem = f"cannot be read ({type(error).__name__})"
        raise TraceError(path, None, "", None, problem, "copy the file again.") from None
    if not isinstance(document, dict):
        raise TraceError(path, None, "", None, "holds no JSON object", "is this the right file?")
    return document


def number(path: Path, place: str, value: object, least: float = 0.0) -> float:
    """The number at a place of a document, between ``least`` and ``LARGEST``. Raises TraceError."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, float) and math.isnan(value))
    ):
        raise TraceError(path, None, place, value, "is not a number", "give a number without quotes.")
    if not least <= value <= LARGEST:
        remedy = f"give a number from {least:g} to {LARGEST:g}."
        raise TraceError(path, None, place, value, "is out of range", remedy)
    return float(value)
