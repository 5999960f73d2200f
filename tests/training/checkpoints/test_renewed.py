"""Credentials that end, and the newer ones that a worker has put beside the run."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from botocore.exceptions import CredentialRetrievalError

from prefect_gpu.training.checkpoints.renewed import own_session
from prefect_gpu.training.protocol import ENV_CREDENTIALS, ENV_CREDENTIALS_FILE


def given(key: str, minutes: float) -> str:
    ends = datetime.now(timezone.utc) + timedelta(minutes=minutes)
    return json.dumps({"AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": "t", "Expiration": ends.isoformat()})


def test_newer_ones_count_as_soon_as_they_are_needed(tmp_path: Path) -> None:
    file = tmp_path / "newer"
    session = own_session({ENV_CREDENTIALS: given("first", 5), ENV_CREDENTIALS_FILE: str(file)})
    assert session is not None
    credentials = session.get_credentials()
    assert credentials.get_frozen_credentials().access_key == "first"
    file.write_text(given("second", 5))
    assert credentials.get_frozen_credentials().access_key == "second"
    file.write_text(given("second", 5)[:20])  # as it is while it is being written
    assert credentials.get_frozen_credentials().access_key in ("first", "second")
    file.write_text(given("third", 60))
    assert credentials.get_frozen_credentials().access_key == "third"


def test_that_nobody_has_renewed_them_is_said(tmp_path: Path) -> None:
    session = own_session({ENV_CREDENTIALS: given("first", -5), ENV_CREDENTIALS_FILE: str(tmp_path / "none")})
    assert session is not None
    with pytest.raises(CredentialRetrievalError, match="as no worker has renewed them: start one"):
        session.get_credentials()


def test_who_was_given_none_finds_those_of_the_environment() -> None:
    assert own_session({"AWS_ACCESS_KEY_ID": "x"}) is None
