"""Which devices of a machine a worker has, beside another one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.nodes.own_node import claim_node

LOGGER = logging.getLogger("tests.own_node")


def test_a_worker_without_a_device_is_told_that_another_one_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was sent to `prefect-gpu doctor`, which knows nothing of it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    settings, first, second = GpuSettings(virtual_devices="2"), Locks(tmp_path), Locks(tmp_path)  # type: ignore[arg-type]
    assert len(claim_node("a", settings, first, print, LOGGER).devices) == 2
    assert claim_node("b", settings, second, print, LOGGER).devices == ()
    assert "another one manages them all" in caplog.text and "PREFECT_INTEGRATIONS_GPU_STATE_DIR" in caplog.text
    assert "doctor" not in caplog.records[-1].message
    first.release()
    assert len(claim_node("b", settings, second, print, LOGGER).devices) == 2
    second.release()
