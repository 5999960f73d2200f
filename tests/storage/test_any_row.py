"""Whatever a run's parameters and numbers are, its row gets into the history, once, and can be read."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.storage.spool import Spool
from tests.support import examples

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


def test_any_row_gets_through_the_spool_into_the_history_once(history_url: str, tmp_path: Path) -> None:
    spool, number = Spool(tmp_path / "spool"), count()

    with History(history_url) as history:

        @settings(max_examples=examples(0.5), deadline=None)
        @given(st.fixed_dictionaries({}, optional=FIELDS), TEXT)
        def check(values: dict[str, Any], flow_name: str) -> None:
            run_id = f"run-{next(number)}"
            row = HistoryRow(run_id, flow_name, "completed", ended_at=float(run_id[4:]), launch=run_id, **values)
            spool.put(row)
            spool.put(row)
            assert spool.write_to(history) == 2 and len(spool) == 0
            [found, *_] = history.rows(limit=1)
            assert found.run_id == run_id and history.count() == int(run_id[4:]) + 1
            json.dumps(found.as_columns(), allow_nan=False)
            for name in ("granted_at", "final_loss", "steps_done"):
                was, now = values.get(name), getattr(found, name)
                assert now is None or (was is not None and math.isclose(now, was, rel_tol=1e-9))

        check()
