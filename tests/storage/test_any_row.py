"""Whatever a run's parameters and numbers are, its row gets into the history, once, and can be read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.storage.spool import Spool
from tests.doors.nonsense import door

# With what Hypothesis does not find soon: what JSON, PostgreSQL or SQLite alone refuse.
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["a\x00b", "\ud800", "\udc80x", "NaN", "1e999", "ß\u2028"]))
WHOLE = st.one_of(st.integers(), st.sampled_from([2**63, -(2**63) - 1, 10**400, 2**31]))
NUMBER = st.one_of(st.floats(), WHOLE)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT, st.binary(max_size=3), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(TEXT, WHOLE), inner, max_size=3), st.tuples(inner)
    ),
    max_leaves=6,
)
MAPPING = st.dictionaries(TEXT, ANYTHING, max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("run_name", "deployment", "pool", "worker", "category", "node", "device_kind", "message"), TEXT),
    **dict.fromkeys(("parameters", "features", "estimate", "pace", "slowdowns"), MAPPING),
    **dict.fromkeys(("requested_gpus", "granted_at", "waited_s", "trained_s", "final_loss", "cpu_mean"), NUMBER),
    **dict.fromkeys(("requested_gpu_memory_bytes", "steps_done", "exit_code", "cores", "rss_peak_bytes"), WHOLE),
    **dict.fromkeys(("devices", "neighbours"), st.lists(TEXT, max_size=2).map(tuple)),
}


@dataclass
class Way:
    """From where rows are put to where they can be read."""

    spool: Spool
    history: History
    taken: int = 0


@pytest.fixture
def way(history_url: str, tmp_path: Path) -> Iterator[Way]:
    with History(history_url) as history:
        yield Way(Spool(tmp_path / "spool"), history)


@door
@given(values=st.fixed_dictionaries({}, optional=FIELDS), flow_name=TEXT)
def test_any_row_gets_through_the_spool_into_the_history_once(way: Way, values: dict[str, Any], flow_name: str) -> None:
    run_id, ended_at = f"run-{way.taken}", float(way.taken)
    way.taken += 1
    row = HistoryRow(run_id, flow_name, "completed", ended_at=ended_at, launch=run_id, **values)
    way.spool.put(row)
    way.spool.put(row)
    assert way.spool.write_to(way.history) == 2 and len(way.spool) == 0
    [found, *_] = way.history.rows(limit=1)
    assert found.run_id == run_id and way.history.count() == way.taken
    json.dumps(found.as_columns(), allow_nan=False)
    for name in ("granted_at", "final_loss", "steps_done"):
        was, now = values.get(name), getattr(found, name)
        assert now is None or (was is not None and math.isclose(now, was, rel_tol=1e-9))
