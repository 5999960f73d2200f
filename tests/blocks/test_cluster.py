"""A pool on a Swarm of real Engines, as its blocks say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

from prefect_gpu.lab import docker_nodes
from prefect_gpu.lab.checkout import IMAGE, environment, volumes
from prefect_gpu.lab.sandbox import Process, Sandbox, wait_until
from tests import radosgw
from tests.live.pool import LivePool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLOWS = Path(__file__).with_name("trainings.py")
SECRETS = (radosgw.SECRET_KEY,)


@pytest.fixture
def server(wide_sandbox: Sandbox) -> Sandbox:
    """The server that containers reach."""
    return wide_sandbox


async def submit(pool: LivePool, **parameters: Any) -> UUID:
    inside = {"volumes": volumes(), "env": environment()}
    return await pool.submit("keeps", file=FLOWS, job_variables=inside, **parameters)


def seen_by(worker: Process) -> dict[str, Any]:
    """What the flow has printed. A run's state may be there before its last lines."""
    worker.wait_for_output("seen {")
    return next(json.loads(line.partition("seen ")[2]) for line in worker.output.splitlines() if "seen {" in line)


async def test_blocks_are_all_that_a_worker_on_a_swarm_is_told(
    pool: LivePool, cluster: docker_nodes.Lab, s3: radosgw.S3Server, tmp_path: Path
) -> None:
    first, second, third = (node.name for node in cluster.nodes)
    endpoint_url = s3.endpoint_url.replace("127.0.0.1", cluster.gateway)
    (tmp_path / "blocks.yaml").write_text(
        f"""
block: gpu-cluster
name: lab
endpoint: {cluster.nodes[0].url}
nodes:
  - {{name: {first}, rack: a, virtual_devices: 0}}
  - {{name: {third}, rack: a, virtual_devices: 0}}
  - {{name: {second}, rack: b, cores: 1, virtual_devices: 1, virtual_device_memory: 1GiB}}
  - {{name: misspelt}}
---
block: checkpoint-storage
name: lab
bucket: {radosgw.BUCKET}
endpoint_url: {endpoint_url}
region: default
access_key_id: {radosgw.ACCESS_KEY}
secret_access_key: {{from_environment: OURS}}
"""
    )
    pool.sandbox.run(["prefect-gpu", "register", str(tmp_path / "blocks.yaml")], env={"OURS": radosgw.SECRET_KEY})
    worker = pool.start_worker(
        wait=False,
        cluster="lab",
        checkpoints="block:checkpoint-storage/lab",
        image=IMAGE,
        advertise=cluster.gateway,
        channel_host="0.0.0.0",
        container_volumes="*",
    )
    failed = await submit(pool, fail=True)
    state = await pool.until(failed, deadline_s=300)
    assert "on purpose" in (state.message or ""), f"{state}\n{worker.output}"
    logs = await pool.client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[failed])), limit=200)
    said = worker.output + "".join(one.message for one in logs)
    seen = seen_by(worker)
    assert seen["AWS_ACCESS_KEY_ID"] == radosgw.ACCESS_KEY
    assert seen["PREFECT_GPU_CPUS"] == "0", "one core is stated"
    assert "Node misspelt is stated, but the Swarm has no such node" in worker.output
    client: Any = s3.client()
    kept = client.list_objects_v2(Bucket=radosgw.BUCKET, Prefix=f"{failed}/commits").get("Contents", ())
    assert kept, "its checkpoints stay"

    done = await submit(pool)
    assert (await pool.until(done, deadline_s=300)).is_completed()
    wait_until(
        lambda: not client.list_objects_v2(Bucket=radosgw.BUCKET, Prefix=str(done)).get("Contents"),
        what="the worker removes what is needed no more",
    )
    for secret in SECRETS:
        assert secret not in said
        for path in pool.state_dir.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), f"the secret lies in {path}"


async def test_containers_are_given_credentials_for_their_own_checkpoints_only(
    pool: LivePool, cluster: docker_nodes.Lab, s3_with_roles: radosgw.S3Server
) -> None:
    s3 = s3_with_roles
    endpoint_url = quote(s3.endpoint_url.replace("127.0.0.1", cluster.gateway))
    worker = pool.start_worker(
        wait=False,
        others=s3.environment,
        driver="docker",
        docker_host=cluster.nodes[0].url,
        checkpoints=f"s3://{radosgw.BUCKET}?endpoint_url={endpoint_url}&region=default",
        checkpoints_role=radosgw.ROLE,
        image=IMAGE,
        advertise=cluster.gateway,
        channel_host="0.0.0.0",
        container_volumes="*",
    )
    client: Any = s3.client()
    client.put_object(Bucket=radosgw.BUCKET, Key="of-another-run/x", Body=b"x")
    inside = {"volumes": volumes(), "env": environment()}
    run = await pool.submit("reaches", file=FLOWS, job_variables=inside, key="of-another-run/x")
    assert (await pool.until(run, deadline_s=300)).is_completed(), worker.output
    seen = seen_by(worker)
    assert len(seen.pop("kept")) == 4
    assert {*seen.values()} == {None, "AccessDenied"}
