"""The door of YAML blocks: a file's blocks are read, or a sentence says which file and what is wrong in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from prefect_gpu.blocks.base import BlockError
from prefect_gpu.blocks.cluster import ClusterNode, GpuCluster
from prefect_gpu.blocks.files import KINDS, read_file
from prefect_gpu.blocks.storage import CheckpointStorage
from tests.doors.nonsense import door, numbers, scalars, tables, texts, values

FIELDS = (*GpuCluster.model_fields, *CheckpointStorage.model_fields, "block", "name")
replaced = st.builds(lambda key, value: {key: value}, st.sampled_from(["from_file", "from_environment"]), scalars)
nodes = st.lists(tables(*ClusterNode.model_fields), max_size=3)
blocks = st.builds(
    lambda kind, name, fields: {"block": kind, "name": name} | fields,
    st.sampled_from(sorted(KINDS)),
    texts,
    tables(*FIELDS) | st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS[:6], replaced) | {"nodes": nodes}),
)
keys_of_all_kinds = st.dictionaries(numbers | st.booleans() | texts, values, max_size=3)


def read(path: Path, text: str) -> None:
    """Read a file that holds the text; a refusal is a sentence with the file's name."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_file(path)
    except BlockError as error:
        assert path.name in str(error) and len(str(error)) < 20_000
    else:
        assert all(one.reference for one in found)


@door
@given(blocks | tables(*FIELDS) | keys_of_all_kinds | values)
def test_documents(tmp_path: Path, document: Any) -> None:
    read(tmp_path / "blocks.yaml", yaml.safe_dump(document, allow_unicode=True))


@door
@example("a: 2024-99-99")
@example("&a [*a]")
@example("block: gpu-cluster\nname: x\nnodes: &a [*a]")
@example("[" * 2_000)
@example("block: [gpu-cluster]\nname: x")
@example("block: gpu-cluster\nname: x\n1: 2")
@example("block: gpu-cluster\nname: x\nca: {from_file: ~nobody-here/x}")
@example('block: gpu-cluster\nname: x\nca: {from_file: "\\0"}')
@example('block: gpu-cluster\nname: x\nca: {from_environment: "\\0"}')
@example('block: gpu-cluster\nname: x\nca: {from_environment: "\\ud800"}')
@example("a: " + "9" * 5_000)
@given(st.text(alphabet="abc: -{}[]&*!|>\n\t'\"#%@`,?0129.e\ud800\0", max_size=60))
def test_texts(tmp_path: Path, text: str) -> None:
    read(tmp_path / "blocks.yaml", text)


def test_a_field_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """The last one counted, and nobody was told."""
    path = tmp_path / "team.yaml"
    path.write_text("block: gpu-quota\nname: team\nshares:\n  - name: ada\n    limit: 1\n    limit: 8\n")
    with pytest.raises(BlockError, match=r"team.yaml: 'limit' is given twice, at line 6 again. Leave one of them out"):
        read_file(path)


def test_a_text_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    laughs += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    path = tmp_path / "blocks.yaml"
    path.write_text("block: gpu-cluster\nname: x\n" + "\n".join(laughs))
    with pytest.raises(BlockError):
        read_file(path)
