"""The doctor's check of the checkpoints' place: is it in reach, and do a bucket's rules delete what runs may need?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from prefect_gpu.cli.folder_check import check_folder
from prefect_gpu.cli.server_check import configured_server
from prefect_gpu.runtime.telemetry import Finding
from prefect_gpu.training.checkpoints.location import S3Location, parse_location
from prefect_gpu.units import plural

if TYPE_CHECKING:
    from prefect_gpu.settings import GpuSettings

_TIMEOUT_S = 5.0
_KEY_OF_A_RUN = re.compile(r"[0-9a-f-]{0,36}(/.*)?")  # its beginning, below the checkpoints' prefix


def check_checkpoints(settings: GpuSettings) -> list[Finding]:
    """Whether their folder can be written; or their bucket is in reach, and its rules expire none. Takes a few seconds.

    Whoever may not read these rules is told nothing bad: to keep checkpoints, nobody needs to read them.
    """
    from prefect_gpu.blocks.base import BlockError

    try:
        location, credentials = asyncio.run(asyncio.wait_for(_place(settings), _TIMEOUT_S))
    except BlockError as error:
        return [Finding("error", "checkpoints", str(error), "See which blocks there are: `prefect block ls`.")]
    except Exception:  # what is wrong with the server is another check's finding
        return []
    place = parse_location(location) if location else None
    if isinstance(place, Path):
        return check_folder(place, "checkpoints", "export PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=$HOME/checkpoints")
    if place is None:
        return []
    try:
        rules = _rules(place, credentials)
    except Exception as error:  # whatever a network, a proxy or a stranger's server may do
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if remedy := _out_of_reach(error):
            return [Finding("warning", "checkpoints", f"{place} is out of reach from here: {said}.", remedy)]
        return [Finding("ok", "checkpoints", f"{place}. Its lifecycle rules could not be read: {said}")]
    return check_rules(place, rules, settings.keep_days)


def _out_of_reach(error: Exception) -> str:
    """What to do if an error says that no checkpoint can be kept there; empty: it does not."""
    from botocore.exceptions import BotoCoreError, ClientError

    from prefect_gpu.training.checkpoints.s3 import error_code, remedy_of

    no_bucket = isinstance(error, ClientError) and error_code(error) == "NoSuchBucket"
    return remedy_of(error) if no_bucket or isinstance(error, BotoCoreError) else ""


def check_rules(place: S3Location, rules: Iterable[Mapping[str, Any]], keep_days: float) -> list[Finding]:
    """Compare the lifecycle rules of a bucket with the days for which what runs have left is kept."""
    later, findings = "", []
    at = f"--bucket {quote(place.bucket)}" + (
        f" --endpoint-url {quote(place.endpoint_url)}" if place.endpoint_url else ""
    )
    for rule in rules:
        expires = rule.get("Expiration") or {}
        if not ("Days" in expires or "Date" in expires) or rule.get("Status") != "Enabled" or not _meets(rule, place):
            continue
        days, name = expires.get("Days"), f"lifecycle rule {rule.get('ID', '')!r}"
        if days is not None and days >= keep_days:
            after = f"after {plural(days, 'day')}"
            later += f" Its {name} deletes them {after}, also those of runs that wait or train for longer."
            continue
        when = f"on {expires['Date']:%Y-%m-%d}" if days is None else f"after {plural(days, 'day')}"
        findings.append(
            Finding(
                "warning",
                "checkpoints",
                f"The {name} of bucket {place.bucket} deletes checkpoints {when}, whether or not their runs need them. "
                f"keep_days is {keep_days:g}.",
                "Restrict the rule to another prefix, or delete it: the worker itself removes what runs have left. See "
                f"it (`aws s3api get-bucket-lifecycle-configuration {at}`), correct it in a file, and put that in its "
                f"place (`aws s3api put-bucket-lifecycle-configuration {at} --lifecycle-configuration file://rules.json`).",
            )
        )
    return findings or [Finding("ok", "checkpoints", f"{place}.{later}")]


def _meets(rule: Mapping[str, Any], place: S3Location) -> bool:
    """Whether it is about objects as runs write them: without tags, below the place's prefix, of any size."""
    chosen = rule.get("Filter") or {}
    chosen = chosen.get("And") or chosen
    if chosen.get("Tag") or chosen.get("Tags"):
        return False
    prefix, ours = chosen.get("Prefix", rule.get("Prefix", "")), f"{place.prefix}/" if place.prefix else ""
    below = prefix.startswith(ours) and _KEY_OF_A_RUN.fullmatch(prefix.removeprefix(ours))
    return ours.startswith(prefix) or bool(below)


async def _place(settings: GpuSettings) -> tuple[str | None, Mapping[str, str]]:
    """The address and the credentials that the settings say, or the block that they name."""
    from prefect.client.orchestration import get_client

    from prefect_gpu.settings import checkpoint_block
    from prefect_gpu.worker.from_blocks import read_storage

    if checkpoint_block(settings.checkpoints) is None:
        return settings.checkpoints, {}
    if not configured_server():
        return None, {}
    async with get_client(httpx_settings={"timeout": _TIMEOUT_S}) as client:
        storage = await read_storage(settings, client)
    return (storage.location, storage.environment) if storage else (None, {})


def _rules(place: S3Location, credentials: Mapping[str, str]) -> list[Mapping[str, Any]]:
    from botocore.exceptions import ClientError

    from prefect_gpu.training.checkpoints.s3 import s3_client

    once: dict[str, Any] = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": _TIMEOUT_S,
        "read_timeout": _TIMEOUT_S,
    }
    try:
        answer = s3_client(place, credentials, **once).get_bucket_lifecycle_configuration(Bucket=place.bucket)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration":
            return []
        raise
    return list(answer.get("Rules") or ())
