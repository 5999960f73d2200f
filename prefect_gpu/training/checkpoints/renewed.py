"""Credentials that reach one run's checkpoints, and end: what the worker has put beside the run counts by then."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from botocore.credentials import CredentialProvider, CredentialResolver, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError
from botocore.session import Session

from prefect_gpu.training.protocol import ENV_CREDENTIALS, ENV_CREDENTIALS_FILE

_LAST_S = 60  # before their end it is an error that there are no newer ones
_TRIES, _PAUSE_S = 5, 0.2  # the file may be being written


class Renewed(CredentialProvider):  # type: ignore[misc]
    """Finds the newest credentials of this run, where botocore wants them.

    Args:
        environ: What the run was told.
    """

    METHOD = CANONICAL_NAME = "prefect-gpu"

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._first, self._file = environ[ENV_CREDENTIALS], environ.get(ENV_CREDENTIALS_FILE, "")

    def load(self) -> RefreshableCredentials:
        """See botocore.

        Raises:
            CredentialRetrievalError: They have ended.
        """
        return RefreshableCredentials.create_from_metadata(
            self._newest(), refresh_using=self._newest, method=self.METHOD, mandatory_timeout=_LAST_S
        )

    def _newest(self) -> dict[str, str]:
        found = self._read()
        ends = datetime.fromisoformat(found["Expiration"])
        if ends <= datetime.now(timezone.utc):
            raise CredentialRetrievalError(
                provider=self.METHOD,
                error_msg=f"this run's credentials ended at {ends:%H:%M}, as no worker has renewed them: start one",
            )
        names = {"access_key": "AccessKeyId", "secret_key": "SecretAccessKey", "token": "SessionToken"}
        return {ours: found[theirs] for ours, theirs in names.items()} | {"expiry_time": found["Expiration"]}

    def _read(self) -> dict[str, str]:
        for _ in range(_TRIES):
            try:
                return dict(json.loads(Path(self._file).read_text() if self._file else self._first))
            except FileNotFoundError:
                break
            except (OSError, ValueError):
                time.sleep(_PAUSE_S)
        return dict(json.loads(self._first))


def own_session(environ: Mapping[str, str] = os.environ) -> Session | None:
    """A session with this run's credentials; None: it has none of its own, and uses those that it finds."""
    if ENV_CREDENTIALS not in environ:
        return None
    session = Session()
    session.register_component("credential_provider", CredentialResolver([Renewed(environ)]))
    return session
