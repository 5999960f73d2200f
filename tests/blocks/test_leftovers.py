"""What a worker removes of old runs from a bucket: what is its own, and nothing that anybody may need."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from prefect_gpu.cli.storage_check import check_checkpoints
from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.settings import GpuSettings
from tests.live.pool import LivePool, eventually
from tests.radosgw import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

pytestmark = pytest.mark.slow

AT_ONCE = {"keep_days": "0.000001", "virtual_devices": "3", "warm_start": "false"}


async def test_a_start_removes_from_s3_what_is_old_and_ours_of_runs_that_are_over(pool: LivePool, s3: S3Server) -> None:
    settings = AT_ONCE | {"checkpoints": f"s3://{BUCKET}/{pool.name}?endpoint_url={s3.endpoint_url}"}
    client: Any = s3.client()

    def keys(below: UUID | str = "") -> list[str]:
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{pool.name}/{below}")
        return [entry["Key"] for entry in listed.get("Contents", ())]

    worker = await asyncio.to_thread(pool.start_worker, others=s3.environment, **settings)
    failed, shared = [await pool.submit("saves_and_fails") for _ in range(2)]
    waits = await pool.submit("plain", at=datetime.now(timezone.utc) + timedelta(days=1))
    for run_id in (failed, shared):
        await pool.until(run_id, "Failed")

    async def ready() -> bool:
        return all(keys(run_id) and not pool.record(run_id) for run_id in (failed, shared))

    await eventually(ready, "checkpoints, and the end of the runs that failed")
    worker.kill()  # nothing of what follows happens before the next start
    # Its checkpoint is as old as can be, and a file of somebody else's lies among those of the run that is shared.
    foreign = [
        "README",
        "thesis/chapter-1",
        f"{uuid4()}/weights",
        f"{shared}/notes",
        f"{failed}x/commits/00000001.json",
    ]
    for name in (*foreign, f"{waits}/commits/00000001.json"):
        client.put_object(Bucket=BUCKET, Key=f"{pool.name}/{name}", Body=b"irreplaceable")
    before = keys()

    worker = await asyncio.to_thread(pool.start_worker, others=s3.environment, **settings)

    async def removed() -> bool:
        return not keys(f"{failed}/")

    await eventually(removed, "the removal of what the failed run had left")
    await asyncio.to_thread(worker.wait_for_output, "Removed what 1 run had left")
    assert keys() == [key for key in before if f"/{failed}/" not in key]


def expires(days: int, prefix: str = "", **more: Any) -> dict[str, Any]:
    return {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": days}} | more


@pytest.mark.parametrize(
    ("rule", "level", "said"),
    [
        (None, "ok", "s3://BUCKET/trainings/ours"),
        (expires(7), "warning", "The lifecycle rule 'tidy' of bucket BUCKET deletes checkpoints after 7 days"),
        (expires(7, "trainings/"), "warning", "keep_days is 30"),
        (expires(30, "trainings/ours/"), "ok", "'tidy' deletes them after 30 days, also those of runs that wait"),
        (expires(7, "trainings/other/"), "ok", "s3://BUCKET/trainings/ours"),
        (expires(7, "trainings/ours/notes/"), "ok", "s3://BUCKET/trainings/ours"),
        (expires(7, Status="Disabled"), "ok", "s3://BUCKET/trainings/ours"),
        (expires(7, Filter={"Tag": {"Key": "a", "Value": "b"}}), "ok", "s3://BUCKET/trainings/ours"),
    ],
)
def test_rules_of_the_bucket_that_delete_checkpoints_are_found(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any] | None, level: str, said: str
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket = with_rule(s3, rule)
    place = f"s3://{bucket}/trainings/ours?endpoint_url={s3.endpoint_url}"
    (found,) = check_checkpoints(GpuSettings(checkpoints=place))
    assert found.level == level and said.replace("BUCKET", bucket) in found.text
    assert ("lifecycle" in found.text) == (level == "warning" or "days" in said)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")  # who may not read the rules is told nothing bad
    (found,) = check_checkpoints(GpuSettings(checkpoints=place))
    assert found.level == "ok" and "lifecycle rules could not be read: An error occurred" in found.text


def test_a_bucket_where_nothing_can_be_kept_is_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """That was called fine: its rules could not be read."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in s3.environment:
        monkeypatch.delenv(name, raising=False)
    place = f"s3://nowhere/x?endpoint_url={s3.endpoint_url}"
    (without_a_key,) = check_checkpoints(GpuSettings(checkpoints=place))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    (without_a_bucket,) = check_checkpoints(GpuSettings(checkpoints=place))
    (without_a_server,) = check_checkpoints(GpuSettings(checkpoints="s3://b/x?endpoint_url=http://127.0.0.1:9"))
    found = [without_a_key, without_a_bucket, without_a_server]
    assert [one.level for one in found] == ["warning"] * 3
    assert "is out of reach from here: Unable to locate credentials." in without_a_key.text
    assert [one.remedy.split()[0] for one in found] == ["Set", "Make", "Check"]


def test_doctor_asks_with_what_the_block_says(used: Sandbox, s3: S3Server, tmp_path: Path) -> None:
    bucket = with_rule(s3, expires(7))
    file = tmp_path / "storage.yaml"
    file.write_text(
        f"block: checkpoint-storage\nname: rules\nbucket: {bucket}\nendpoint_url: {s3.endpoint_url}\nregion: default\n"
        f"access_key_id: {ACCESS_KEY}\nsecret_access_key: {{from_environment: OURS}}\n"
    )
    used.run(["prefect-gpu", "register", "--overwrite", str(file)], env={"OURS": SECRET_KEY})
    block = {"PREFECT_INTEGRATIONS_GPU_CHECKPOINTS": "block:checkpoint-storage/rules"}
    said = " ".join(used.run(["prefect-gpu", "doctor"], env=block, check=False).split())
    assert f"The lifecycle rule 'tidy' of bucket {bucket} deletes checkpoints after 7 days" in said
    assert SECRET_KEY not in said


def with_rule(s3: S3Server, rule: dict[str, Any] | None) -> str:
    """A bucket with that lifecycle rule."""
    client: Any = s3.client()
    bucket = f"rules-{uuid4()}"
    client.create_bucket(Bucket=bucket)
    if rule:
        client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    return bucket
