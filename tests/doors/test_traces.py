"""The door of traces: the jobs of a file are read, or an error names file, line, field, value and remedy."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from prefect_gpu.simulation.traces.formats import FORMATS, read_trace
from prefect_gpu.simulation.traces.job import TraceError
from tests.doors.nonsense import door, numbers, scalars, tables, texts, values

cells = (
    st.integers(0, 9).map(str) | numbers.map(str) | texts | st.sampled_from(["2023-01-01 00:00:00", "[1, 2]", '"', ","])
)


def read(path: Path, content: bytes, format: str | None) -> None:
    """Read a file that holds it: its jobs make sense, or it is refused."""
    path.write_bytes(content)
    try:
        jobs = list(read_trace(path, format))
    except TraceError as error:
        assert path.name in str(error) and len(str(error)) < 5_000
    else:
        assert all(job.gpus >= 0 and math.isfinite(job.submit_s) for job in jobs)


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, str]:
    """(format, a table with the columns of that format)."""
    name, format = draw(st.sampled_from([(name, one) for name, one in FORMATS.items() if one.columns]))
    columns = [*format.columns, *draw(st.lists(texts, max_size=2))]
    rows = draw(st.lists(st.lists(cells, min_size=len(columns), max_size=len(columns)), max_size=4))
    return name, "\n".join(",".join(row) for row in [columns, *rows])


@door
@given(lines(), st.booleans(), st.booleans())
def test_tables(tmp_path: Path, table: tuple[str, str], named: bool, packed: bool) -> None:
    name, text = table
    content = text.encode("utf-8", "surrogatepass")
    read(tmp_path / "trace.csv", gzip.compress(content) if packed else content, name if named else None)


@door
@example(b"\x1f\x8b", None)
@example(b"[" * 100_000, "deepshare")
@given(
    st.binary(max_size=60) | st.lists(cells, max_size=12).map(lambda one: "\t".join(one).encode("utf-8", "replace")),
    st.none() | st.sampled_from(sorted(FORMATS)),
)
def test_bytes(tmp_path: Path, content: bytes, format: str | None) -> None:
    read(tmp_path / "trace", content, format)


@door
@given(st.dictionaries(texts, tables("model", "gpus", "batch_size", "arrival", "submit", "epochs") | values | scalars))
def test_documents(tmp_path: Path, document: object) -> None:
    read(tmp_path / "trace.json", json.dumps(document).encode("utf-8", "surrogatepass"), "deepshare")
