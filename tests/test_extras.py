"""What an extra lacks."""

from __future__ import annotations

from importlib import metadata

import pytest

from prefect_gpu.extras import lacking


@pytest.mark.parametrize(("there", "lacks"), [({"xgboost"}, False), ({"xgboost-cpu"}, False), (set(), True)])
def test_xgboost_for_the_cpu_is_xgboost(there: set[str], lacks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name.startswith("xgboost") and name not in there:
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    assert ("xgboost" in lacking("worker")) is lacks
