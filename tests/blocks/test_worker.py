"""A worker takes its blocks from a real Prefect server; runs reach a real S3 server with what a block says."""

from __future__ import annotations

import asyncio
import html
import json
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter

from prefect_gpu.blocks import CheckpointStorage, GpuCluster
from prefect_gpu.blocks.base import BlockError
from prefect_gpu.blocks.files import KINDS
from prefect_gpu.cli.blocks_check import check_blocks
from prefect_gpu.lab.sandbox import Sandbox, wait_until
from prefect_gpu.links import DOCUMENTATION
from prefect_gpu.runtime.actions.instances import CREDENTIALS_FILE
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.from_blocks import read_blocks
from tests.live.pool import LivePool, eventually
from tests.radosgw import ACCESS_KEY, BUCKET, ROLE, SECRET_KEY, S3Server

pytestmark = pytest.mark.slow

FLOWS = Path(__file__).with_name("trainings.py")

HOST_KEY = "host ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"
PEM = "-----BEGIN PRIVATE KEY-----\nnever-shown\n-----END PRIVATE KEY-----"


async def submit(pool: LivePool, job_variables: dict[str, Any] | None = None, **parameters: Any) -> UUID:
    return await pool.submit("keeps", file=FLOWS, job_variables=job_variables, **parameters)


def objects(s3: S3Server, prefix: str) -> list[str]:
    client: Any = s3.client()
    return [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())]


async def test_runs_keep_their_checkpoints_where_a_block_says(pool: LivePool, s3: S3Server, tmp_path: Path) -> None:
    file = tmp_path / "storage.yaml"
    file.write_text(
        f"block: checkpoint-storage\nname: {pool.name}\nbucket: {BUCKET}\nprefix: {pool.name}\n"
        f"endpoint_url: {s3.endpoint_url}\nregion: default\naccess_key_id: {ACCESS_KEY}\n"
        "secret_access_key: {from_environment: OURS}\n"
    )
    register = ["prefect-gpu", "register", str(file)]
    output = pool.sandbox.run(register, env={"OURS": SECRET_KEY})
    assert f"checkpoint-storage/{pool.name}: registered" in output
    again = pool.sandbox.run(register, env={"OURS": SECRET_KEY}, check=False)
    assert "is there already: --overwrite replaces it" in again
    pool.sandbox.run([*register, "--overwrite"], env={"OURS": SECRET_KEY})

    worker = pool.start_worker(checkpoints=f"block:checkpoint-storage/{pool.name}")
    seen = tmp_path / "seen"
    failed = await submit(pool, seen=str(seen), fail=True)
    state = await pool.until(failed)
    assert "on purpose" in (state.message or ""), worker.output
    assert json.loads(seen.read_text())["AWS_ACCESS_KEY_ID"] == ACCESS_KEY
    assert any(f"{pool.name}/{failed}/commits/" in key for key in objects(s3, pool.name))

    done = await submit(pool, seen=str(seen))
    assert (await pool.until(done)).is_completed()
    wait_until(lambda: not objects(s3, f"{pool.name}/{done}"), what="the worker removes what is needed no more")

    own = await submit(pool, {"env": {"AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "own"}}, seen=str(seen))
    state = await pool.until(own)
    assert "AWS_ACCESS_KEY_ID is not known to the server" in (state.message or ""), "a run's own credentials count"

    logs = await pool.client.read_logs(LogFilter(), limit=200)
    said = worker.output + "".join(one.message for one in logs)
    assert SECRET_KEY not in said
    for path in pool.state_dir.rglob("*"):
        if path.is_file():
            assert SECRET_KEY.encode() not in path.read_bytes(), f"the secret lies in {path}"


async def test_a_run_is_given_credentials_for_its_own_checkpoints_only(
    pool: LivePool, s3_with_roles: S3Server, tmp_path: Path
) -> None:
    s3 = s3_with_roles
    place = {
        "checkpoints": f"s3://{BUCKET}/{pool.name}?endpoint_url={quote(s3.endpoint_url)}&region=default",
        "checkpoints_role": ROLE,
        "virtual_devices": "1",
    }
    worker = pool.start_worker(**place, others=s3.environment)
    victim = await submit(pool, seen=str(tmp_path / "victim"), fail=True)
    assert "on purpose" in ((await pool.until(victim)).message or ""), worker.output
    [commit, *_] = [key for key in objects(s3, f"{pool.name}/{victim}") if "/commits/" in key]
    seen, go = tmp_path / "seen", tmp_path / "go"
    run = await pool.submit("reaches", file=FLOWS, key=commit, seen=str(seen), go=str(go))

    async def has_tried() -> bool:
        return seen.exists() or bool((await pool.read(run)).state.is_final())  # type: ignore[union-attr]

    await eventually(has_tried, "the run to have tried")
    assert seen.exists(), worker.output
    found = json.loads(seen.read_text())
    kept = found.pop("kept")
    assert found == {"AWS_SECRET_ACCESS_KEY": None} | dict.fromkeys(
        ("read", "list", "list all", "write", "remove"), "AccessDenied"
    )
    assert len(kept) == 4, "two checkpoints, and their commits: it may remove what is its own"

    # A worker that takes over gives it new ones, which the worker before may have failed to do for long.
    await asyncio.to_thread(pool.stop_workers)
    worker = pool.start_worker(**place, others=s3.environment)
    files = lambda: list(pool.state_dir.glob(f"runs/*/{CREDENTIALS_FILE}"))  # noqa: E731
    await asyncio.to_thread(wait_until, files, what="new credentials", timeout_s=120.0)
    [file] = files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() not in worker.output
    go.touch()
    assert (await pool.until(run)).is_completed(), worker.output

    # While the store is away, a run waits and says why.
    s3.halt()
    waits = await submit(pool, seen=str(seen))

    async def says_why() -> bool:
        state = (await pool.read(waits)).state
        return state is not None and state.is_scheduled() and f"checkpoints_role={ROLE!r}" in (state.message or "")

    try:
        await eventually(says_why, "the run to say why it waits")
    finally:
        s3.resume()
    assert (await pool.until(waits)).is_completed(), worker.output


async def test_workers_that_cannot_serve_say_why_and_end(pool: LivePool, tmp_path: Path) -> None:
    engine = "unix:///nowhere.sock"
    of_engine = {"driver": "docker", "advertise": "127.0.0.1", "docker_host": engine}
    cases = [
        ({"cluster": "nowhere"}, "cluster='nowhere': there is no block gpu-cluster/nowhere"),
        ({"driver": "docker"}, "advertise is not set, but driver='docker' needs it"),
        (of_engine, f"The engine at {engine} could not be reached"),
    ]
    workers = [
        pool.start_worker(wait=False, state_dir=tmp_path / str(number), **settings)
        for number, (settings, _) in enumerate(cases)
    ]
    for worker, (_, said) in zip(workers, cases, strict=True):
        wait_until(lambda ended=worker: ended.popen.poll() is not None, what=f"the worker's end: {worker.output}")  # type: ignore[misc]
        assert worker.popen.returncode == 1
        assert f"The worker cannot start: {said}" in worker.output
        assert "Traceback" not in worker.output


async def test_the_doctor_says_which_blocks_are_not_there(used: Sandbox) -> None:
    found = await asyncio.to_thread(check_blocks, GpuSettings(cluster="nowhere", quota="nowhere"))
    assert [(one.level, one.subject) for one in found] == [("error", "nodes"), ("error", "shares")]
    assert "cluster='nowhere': there is no block" in found[0].text and "quota='nowhere'" in found[1].text
    assert check_blocks(GpuSettings()) == []


async def test_a_cluster_block_fills_in_the_settings(used: Sandbox, tmp_path: Path) -> None:
    block: Any = GpuCluster(
        endpoint="tcp://10.0.0.1:2376",
        node_url="tcp://{name}:2376",
        ca="/etc/ca.pem",
        certificate=PEM,
        key=PEM,  # type: ignore[arg-type]
        ssh_key=PEM,  # type: ignore[arg-type]
        ssh_known_hosts=HOST_KEY,
        nodes=[{"name": "n1", "rack": "a"}],  # type: ignore[list-item]
    )
    await block.asave("ours", overwrite=True)
    async with get_client() as client:
        chosen = await read_blocks(GpuSettings(cluster="ours", state_dir=tmp_path), client)
        other = await read_blocks(
            GpuSettings(cluster="gpu-cluster/ours", state_dir=tmp_path, docker_host="ssh://me@host"), client
        )
        with pytest.raises(BlockError, match=r"there is no block checkpoint-storage/nowhere \(`prefect block ls`"):
            await read_blocks(GpuSettings(checkpoints="block:nowhere", state_dir=tmp_path), client)
        with pytest.raises(BlockError, match="driver='process' is set beside cluster='ours'"):
            await read_blocks(GpuSettings(cluster="ours", driver="process", state_dir=tmp_path), client)
    settings = chosen.settings
    assert (settings.driver, settings.docker_host, settings.docker_node_url) == (
        "swarm",
        "tcp://10.0.0.1:2376",
        "tcp://{name}:2376",
    )
    assert chosen.nodes == {"n1": {"prefect-gpu.rack": "a"}}
    assert other.settings.docker_host == "ssh://me@host", "what is set beside it counts"
    assert settings.docker_ca == Path("/etc/ca.pem")
    assert settings.docker_key == tmp_path / "engine" / "key.pem"
    assert settings.docker_ssh_key == tmp_path / "engine" / "ssh_key"
    for file in (settings.docker_key, settings.docker_ssh_key):
        assert file.read_text() == PEM + "\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert settings.docker_ssh_known_hosts is not None
    assert settings.docker_ssh_known_hosts.read_text() == HOST_KEY + "\n"
    assert stat.S_IMODE(settings.docker_key.parent.stat().st_mode) == 0o700
    assert "never-shown" not in repr(chosen)


async def test_a_block_that_was_changed_by_hand_is_explained_without_its_secrets(used: Sandbox) -> None:
    block: Any = CheckpointStorage(bucket="b", access_key_id="a", secret_access_key="never-shown")  # type: ignore[arg-type]
    await block.asave("changed", overwrite=True)
    async with get_client() as client:
        from prefect.client.schemas.actions import BlockDocumentUpdate

        data = {"bucket": "b/c", "access_key_id": "a", "secret_access_key": "never-shown"}
        await client.update_block_document(
            block._block_document_id, BlockDocumentUpdate(data=data, merge_existing_data=False)
        )
        with pytest.raises(BlockError) as raised:
            await read_blocks(GpuSettings(checkpoints="block:changed"), client)
    assert "checkpoint-storage/changed cannot be used: bucket='b/c': give the bucket's name" in str(raised.value)
    assert "never-shown" not in str(raised.value)


async def test_prefects_own_command_registers_the_types(used: Sandbox) -> None:
    said = used.prefect("block", "register", "-m", "prefect_gpu")
    assert "Successfully registered 4 blocks" in said
    async with get_client() as client:
        for kind in KINDS.values():
            known = await client.read_block_type_by_slug(kind.get_block_type_slug())
            assert (known.name, known.description) == (kind.get_block_type_name(), kind.get_description())
            assert (str(known.logo_url), str(known.documentation_url)) == (str(kind._logo_url), DOCUMENTATION)
            # Prefect's server escapes the example of a type that it makes, and not of one that it brings up to date.
            assert html.unescape(known.code_example or "") == kind.get_code_example()
