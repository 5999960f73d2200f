"""A place for each test: a folder, or a prefix in a real S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.radosgw import BUCKET, S3Server


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address in S3 of the test's own; credentials are in the environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}?endpoint_url={s3.endpoint_url}"
