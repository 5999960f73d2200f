"""The door of records: whatever lies in the folder of runs, a worker starts, and knows what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.runtime.launch.records import RecordStore, RunRecord
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.codec import plain
from prefect_gpu.scheduling.model.jobs import Request
from tests.doors.nonsense import door, tables, values

PLACE = Placement("here", ("d",), (0,))
FINE = json.loads(json.dumps(RunRecord("r", "n", "pool", "q", "t", Request(), PLACE), default=plain))
changed = st.builds(lambda change: FINE | change, tables(*FINE))
documents = changed | values | st.just(FINE)
contents = st.binary(max_size=60) | documents.map(lambda one: json.dumps(one).encode("utf-8", "replace"))


@door
@given(contents)
def test_record_files(content: bytes) -> None:
    with TemporaryDirectory() as place:
        store = RecordStore(Path(place), "pool")
        torn = store.create(RunRecord("torn", "n", "pool", "q", "t", Request(), Placement("here", ("d",), (0,))))
        store.create(RunRecord("fine", "n", "pool", "q", "t", Request(), Placement("here", ("e",), (1,))))
        (torn / "record.json").write_bytes(content)
        found: list[Any] = [record for _, record in store]
        assert "fine" in [record.run_id for record in found]
        for record in [*found, *(record for _, record in store.damaged())]:
            assert isinstance(record, RunRecord)
