from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml_stub import NvmlStub, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> NvmlStub:
    return NvmlStub(nvml_library, tmp_path / "nvml-state")
