from __future__ import annotations

from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers.conformance import MakeSpec, probes


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    return probes(tmp_path)
