"""Credentials of one run alone, for its checkpoints in S3: the worker takes a role for each run, and renews them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.settings import GpuSettings
from prefect_gpu.training.checkpoints.location import S3Location, parse_location
from prefect_gpu.worker.setup_error import SetupError

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError

_PATIENCE: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 2}}
_KEEPS = "Run %s keeps its credentials for now: %s"
_SETTING = "PREFECT_INTEGRATIONS_GPU_CHECKPOINTS_ROLE"


class RunCredentials:
    """Takes a role, as narrow as each run's prefix.

    Args:
        role: Its ARN.
        seconds: How long credentials are good.
        place: Where the checkpoints of all runs are.
        sts: A client of STS. It is asked in threads.
    """

    def __init__(self, role: str, seconds: int, place: S3Location, sts: Any, logger: logging.Logger) -> None:
        self._role, self._seconds, self._place, self._sts, self._logger = role, seconds, place, sts, logger
        self._renew_at: dict[str, float] = {}

    async def of(self, run_id: str) -> str:
        """New credentials of a run: JSON, as :data:`.protocol.ENV_CREDENTIALS` has it. Secret.

        Raises:
            LaunchError: STS gives none now. The message names the setting and the remedy.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        asked = CLOCK()
        try:
            found = await asyncio.to_thread(self._ask, run_id)
        except (BotoCoreError, ClientError) as error:
            failed = LaunchError(self._explain(error))
            failed.explains = True
            raise failed from error
        self._renew_at[run_id] = asked + self._seconds / 3  # so that it may fail twice
        return json.dumps(found)

    def _ask(self, run_id: str) -> dict[str, str]:
        found = self._sts.assume_role(
            RoleArn=self._role,
            RoleSessionName=f"prefect-gpu-{run_id}",
            DurationSeconds=self._seconds,
            # Without blanks: Ceph's gateway does not read them.
            Policy=json.dumps(policy(self._place.below(run_id), self._role), separators=(",", ":")),
        )["Credentials"]
        return {**found, "Expiration": found["Expiration"].isoformat()}

    def _explain(self, error: BotoCoreError | ClientError) -> str:
        return (
            f"it has no credentials for its checkpoints: STS at {self._sts.meta.endpoint_url} did not give "
            f"checkpoints_role={self._role!r} ({error}). Check that it is up, that the role exists, lets the worker "
            f"take it, and allows sessions of {self._seconds} s; or unset {_SETTING}"
        )

    async def renew(self, controller: Controller) -> None:
        """Give all that runs new credentials in time, until cancelled; at once what an earlier worker has started."""
        every_s = self._seconds / 60
        while True:
            self._renew_at = {run: at for run, at in self._renew_at.items() if run in controller.runs}
            for run in list(controller.runs.values()):
                if run.handle is None or CLOCK() < self._renew_at.get(run.run_id, 0.0):
                    continue
                try:
                    credentials = await self.of(run.run_id)
                except LaunchError as error:
                    self._logger.warning(_KEEPS, run.record.name, error)
                    break  # it would be the same with the others
                try:
                    await asyncio.wait_for(controller.give_credentials(run, credentials), every_s)
                except asyncio.TimeoutError:  # its node gets them when it is back
                    self._logger.warning(_KEEPS, run.record.name, "its node is out of reach")
                except (LaunchError, OSError) as error:
                    self._renew_at.pop(run.run_id, None)
                    self._logger.warning(_KEEPS, run.record.name, error)
            await asyncio.sleep(every_s)


def policy(place: S3Location, role: str) -> dict[str, Any]:
    """What a session may do that is for one place only."""
    partition = role.split(":")[1]
    bucket, below = f"arn:{partition}:s3:::{place.bucket}", f"{place.prefix}/*"
    objects = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
    listed = {"StringLike": {"s3:prefix": [below]}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": objects, "Resource": [f"{bucket}/{below}"]},
            {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [bucket], "Condition": listed},
        ],
    }


def run_credentials(settings: GpuSettings, own: Mapping[str, str], logger: logging.Logger) -> RunCredentials | None:
    """What the settings ask for; None: runs share the credentials that there are.

    Args:
        own: ``AWS_...`` variables of the worker's; empty: those of its environment.

    Raises:
        SetupError: It cannot be. The message names the setting.
    """
    role = settings.checkpoints_role
    if not role:
        return None
    place = parse_location(settings.checkpoints or "none")
    if not isinstance(place, S3Location):
        raise SetupError(
            f"checkpoints_role={role!r} is for checkpoints in S3: set checkpoints=s3://…, or unset {_SETTING}"
        )
    if role.split(":")[:1] != ["arn"] or role.count(":") < 5:
        raise SetupError(f"checkpoints_role={role!r} is no ARN: the form is arn:aws:iam::123456789012:role/NAME")
    if found := set("*?$") & set(place.bucket + place.prefix):
        raise SetupError(
            f"checkpoints={settings.checkpoints!r} has a {found.pop()} in it, which means something else in a policy: "
            f"choose another prefix, or unset {_SETTING}"
        )
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    session = boto3.session.Session(**{name.lower(): value for name, value in own.items()})
    url = settings.checkpoints_sts_url or place.endpoint_url or None
    try:
        sts = session.client("sts", endpoint_url=url, region_name=place.region or None, config=Config(**_PATIENCE))
    except (BotoCoreError, ValueError) as error:
        raise SetupError(f"checkpoints_role={role!r}: STS cannot be asked: {error}") from error
    return RunCredentials(role, settings.checkpoints_role_seconds, place, sts, logger)
