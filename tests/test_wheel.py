"""What is installed with the package, beside its modules."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling import build

from prefect_gpu.papers.deepshare.shipped import available, policy_of

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_the_trained_policies_and_their_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wheel = zipfile.ZipFile(tmp_path / build.build_wheel(str(tmp_path)))
    here = "prefect_gpu/papers/deepshare/weights"
    found = {name for name in wheel.namelist() if name.startswith(here)}
    assert available()
    assert found >= {f"{here}/deepshare-{one.lower()}.{kind}" for one in available() for kind in ("npz", "json")}
    for name in found:
        assert wheel.read(name) == (ROOT / name).read_bytes()
        if name.endswith(".npz"):
            policy_of(wheel.read(name))
