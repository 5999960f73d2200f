"""What blocks accept, what they say otherwise, and that nothing shows their secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from typer.testing import CliRunner

from prefect_gpu.blocks import CheckpointStorage, ClusterNode, GpuCluster
from prefect_gpu.blocks.base import BlockError, explain
from prefect_gpu.blocks.files import read_file
from prefect_gpu.cli import app
from prefect_gpu.settings import GpuSettings, checkpoint_block
from prefect_gpu.training.checkpoints.location import S3Location, parse_location, part_of

BLOCKS = Path(__file__).parents[2] / "blocks"
SECRET = "do-not-show-this"
KEYS: dict[str, Any] = {"access_key_id": "AKIDNOTSHOWN", "secret_access_key": SECRET}


def test_a_storage_in_s3_has_an_address_without_credentials_and_an_environment_with_them() -> None:
    block = CheckpointStorage(
        bucket="b", prefix="/runs/", endpoint_url="https://s3.example:9000", region="eu", session_token="t", **KEYS
    )
    assert parse_location(block.location) == S3Location("b", "runs", "https://s3.example:9000", "eu")
    assert block.environment == {
        "AWS_ACCESS_KEY_ID": "AKIDNOTSHOWN",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "t",
    }
    for shown in (str(block), repr(block), block.location, block.model_dump_json()):
        assert SECRET not in shown
        assert "AKIDNOTSHOWN" not in shown


@pytest.mark.parametrize("prefix", ["team=vision/my runs", "50%", "a+b@c", "100%25"])
def test_a_prefix_stays_what_it_is_on_its_way_to_a_run(prefix: str) -> None:
    block = CheckpointStorage(bucket="b", prefix=prefix)
    assert parse_location(block.location) == S3Location("b", prefix)
    of_run = part_of(block.location, "the-run")
    assert parse_location(part_of(of_run, "best")) == S3Location("b", f"{prefix}/the-run/best")
    assert parse_location("s3://b/team=vision/my runs") == S3Location("b", "team=vision/my runs"), "as people write it"


@pytest.mark.parametrize(
    "text, said",
    [
        (f"s3://me:{SECRET}@b", "checkpoints='s3://***@b': the form is s3://bucket/prefix"),
        (f"s4://me:{SECRET}@b", "checkpoints='s4://***@b': s4:// is not known"),
        (f"s3://b?secret_access_key={SECRET}", "checkpoints='s3://b': secret_access_key is not known"),
    ],
)
def test_an_address_that_is_none_is_explained_without_what_is_secret_in_it(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_location(text)
    assert said in str(raised.value) and SECRET not in str(raised.value)


def test_a_folder_needs_nothing_else() -> None:
    block = CheckpointStorage(folder="/mnt/checkpoints")
    assert (block.location, block.environment) == ("/mnt/checkpoints", {})


@pytest.mark.parametrize(
    "fields, said",
    [
        ({}, "folder=None and bucket=None: give either"),
        ({"folder": "/x", "bucket": "b"}, "give either"),
        ({"folder": "/x", "region": "eu"}, "region is set beside folder='/x'"),
        ({"folder": "/x", **KEYS}, "access_key_id is set beside folder='/x'"),
        ({"bucket": "b", "secret_access_key": SECRET}, "secret_access_key is set and access_key_id is not"),
        ({"bucket": "b", "access_key_id": SECRET}, "access_key_id is set and secret_access_key is not"),
        ({"bucket": "b", "session_token": SECRET}, "session_token is set and access_key_id is not"),
        ({"bucket": "b/c"}, "bucket='b/c': give the bucket's name alone"),
        ({"bucket": f"me:{SECRET}@b"}, "bucket='***@b': give the bucket's name alone"),
        ({"bucket": f"s3://me:{SECRET}@b"}, "bucket='s3://***@b': give the bucket's name alone"),
        ({"bucket": f"me:{SECRET}@b", "folder": "/x"}, "folder='/x' and bucket='***@b': give either"),
        ({"bucket": "b", "endpoint_url": f"me:{SECRET}@s3.example"}, "credentials belong in access_key_id"),
        ({"bucket": "b", "endpoint_url": "s3.example"}, "endpoint_url='s3.example': it begins with http"),
        ({"bucket": "b", "endpoint_url": f"https://me:{SECRET}@s3.example"}, "credentials belong in access_key_id"),
        ({"bucket": "b", "secret_acces_key": SECRET}, "secret_acces_key is no field of checkpoint-storage"),
        ({"bucket": "b", "access_key_id": "A", "secret_access_key": [SECRET]}, "secret_access_key: "),
    ],
)
def test_a_wrong_storage_is_explained(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        CheckpointStorage(**fields)
    assert said in explain(raised.value)
    assert SECRET not in explain(raised.value) + str(raised.value)


def test_a_cluster_states_its_nodes_as_labels() -> None:
    node = ClusterNode(name="n1", rack="a", domain="d", cores=4, gpus=["GPU-1", "GPU-2"], gpu_memory="80GiB")
    cluster = GpuCluster(nodes=[node, ClusterNode(name="n2", virtual_devices=2, endpoint="tcp://n2:2376")])
    assert cluster.labels == {
        "n1": {
            "prefect-gpu.rack": "a",
            "prefect-gpu.domain": "d",
            "prefect-gpu.cores": "4",
            "prefect-gpu.gpus": "GPU-1,GPU-2",
            "prefect-gpu.gpu-memory": "80GiB",
        },
        "n2": {"prefect-gpu.virtual-devices": "2", "prefect-gpu.endpoint": "tcp://n2:2376"},
    }


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"driver": "kubernetes"}, "driver='kubernetes': input should be 'docker' or 'swarm'"),
        ({"endpoint": "10.0.0.1:2376"}, "endpoint='10.0.0.1:2376' is no address of an Engine"),
        ({"endpoint": f"ssh://me:{SECRET}@host"}, "endpoint: a password does not belong there"),
        ({"endpoint": f"me:{SECRET}@host"}, "endpoint: a password does not belong there"),
        ({"node_url": f"tcp://me:{SECRET}@host:2376"}, "node_url: a password does not belong there"),
        ({"node_url": "tcp://host:2376"}, "it needs {address} or {name} in it"),
        ({"node_url": "tcp://{host}:2376"}, "it needs {address} or {name} in it"),
        ({"certificate": "/c.pem"}, "certificate is set and key is not"),
        ({"key": SECRET}, "key is set and certificate is not"),
        ({"key": {"pem": SECRET}, "certificate": "/c.pem"}, "key: "),
        ({"ssh_key": f"ssh-ed25519 AAAAC3Nza{SECRET} me@here"}, "ssh_key: this is a public key; give the private one"),
        ({"ssh_key": [SECRET]}, "ssh_key: "),
        ({"nodes": [{"name": "n"}, {"name": "n"}]}, "nodes: 'n' is there twice"),
        ({"nodes": [{"name": name, "gpus": ["GPU-1"]} for name in "nm"]}, "nodes: the GPU 'GPU-1' is there twice"),
        ({"nodes": [{"rack": "a"}]}, "nodes.0.name: field required"),
        ({"nodes": [{"name": "n", "rak": "a"}]}, "rak is no field of node n"),
        ({"nodes": [{"name": "n", "cores": 0}]}, "nodes.0.cores=0: input should be greater than or equal to 1"),
        ({"nodes": [{"name": "n", "gpu_memory": "much"}]}, "gpu_memory='much' is not a size"),
        ({"driver": "docker", "nodes": [{"name": "n"}, {"name": "m"}]}, "there are 2, and driver='docker' has one"),
        ({"driver": "docker", "nodes": [{"name": "n", "endpoint": "tcp://n:1"}]}, "give the block's own endpoint"),
    ],
)
def test_a_wrong_cluster_is_explained(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        GpuCluster(**fields)
    assert said in explain(raised.value)
    assert SECRET not in explain(raised.value) + str(raised.value)


def test_the_setting_of_checkpoints_takes_a_block() -> None:
    assert checkpoint_block("block:checkpoint-storage/team") == checkpoint_block("block:team") == "team"
    assert checkpoint_block("/a/folder") is checkpoint_block(None) is None
    assert GpuSettings(checkpoints="block:checkpoint-storage/team").checkpoints == "block:checkpoint-storage/team"
    assert GpuSettings(checkpoints="s3://b/x").checkpoints == "s3://b/x"
    here = {"~/kept": Path.home() / "kept", "kept": Path.cwd() / "kept", "file:///kept": Path("/kept")}
    assert [GpuSettings(checkpoints=one).checkpoints for one in here] == [str(folder) for folder in here.values()]
    with pytest.raises(ValueError, match="checkpoints=' ' is no place"):
        GpuSettings(checkpoints=" ")
    with pytest.raises(ValidationError, match="blocks of other types"):
        GpuSettings(checkpoints="block:s3-bucket/team")
    with pytest.raises(ValidationError, match="the form is"):
        GpuSettings(checkpoints="block:")


@pytest.mark.parametrize("file", sorted(BLOCKS.glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_right(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINTS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("CHECKPOINTS_SECRET_ACCESS_KEY", "b")
    assert read_file(file)


def test_a_file_may_refer_to_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN KEY-----\nabc\n-----END KEY-----\n")
    monkeypatch.setenv("OURS", SECRET)
    (tmp_path / "blocks.yaml").write_text(
        "block: gpu-cluster\nname: lab\ncertificate: /c.pem\nkey: {from_file: key.pem}\n"
        "---\nblock: checkpoint-storage\nname: s3\nbucket: b\naccess_key_id: a\n"
        "secret_access_key: {from_environment: OURS}\n"
    )
    cluster, storage = read_file(tmp_path / "blocks.yaml")
    assert isinstance(cluster.block, GpuCluster)
    assert isinstance(storage.block, CheckpointStorage)
    assert (cluster.reference, storage.reference) == ("gpu-cluster/lab", "checkpoint-storage/s3")
    assert cluster.block.key == SecretStr("-----BEGIN KEY-----\nabc\n-----END KEY-----")
    assert storage.block.secret_access_key == SecretStr(SECRET)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "describes no block"),
        ("- 1", "a block is written as"),
        (f"block: x: {SECRET}", "is no YAML at line 1"),
        (
            "block: gpu-pool\nname: a",
            "is not known: write checkpoint-storage, gpu-cluster, gpu-quota or gpu-slurm",
        ),
        ("block: gpu-cluster", "name=None: give the block a name"),
        ("block: gpu-cluster\nname: Lab_2", "name='Lab_2' is no name for a block: write lower-case letters"),
        ("block: gpu-cluster\nname: a\nca: {from_file: nowhere.pem}", "nowhere.pem cannot be read: No such file"),
        ("block: gpu-cluster\nname: a\nca: {from_environment: NOT_SET_AT_ALL}", "NOT_SET_AT_ALL is not set: export it"),
        ("block: gpu-cluster\nname: a\nendpoint: here", "gpu-cluster/a: endpoint='here' is no address"),
    ],
)
def test_a_wrong_file_is_explained(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "blocks.yaml"
    file.write_text(text)
    with pytest.raises(BlockError) as raised:
        read_file(file)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)
    assert SECRET not in str(raised.value)
    shown = CliRunner().invoke(app, ["register", "--check", str(file)])
    assert shown.exit_code == 2
    assert SECRET not in shown.output
