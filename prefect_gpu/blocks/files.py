"""Blocks as YAML files: read, checked, and registered with Prefect."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from prefect.exceptions import PrefectHTTPStatusError
from prefect.types.names import raise_on_name_alphanumeric_dashes_only
from pydantic import ValidationError

from prefect_gpu.blocks.base import BlockError, StrictBlock, explain
from prefect_gpu.blocks.cluster import GpuCluster
from prefect_gpu.blocks.quota import GpuQuota
from prefect_gpu.blocks.slurm import GpuSlurm
from prefect_gpu.blocks.storage import CheckpointStorage
from prefect_gpu.units import shown

KINDS: dict[str, type[StrictBlock]] = {
    kind.get_block_type_slug(): kind for kind in (GpuCluster, GpuQuota, GpuSlurm, CheckpointStorage)
}
_MOST_VALUES = 10_000  # of a block
_FROM_FILE, _FROM_ENVIRONMENT = "from_file", "from_environment"


class _TwiceError(yaml.YAMLError):
    """A mapping has a key twice, of which YAML's library would take the last."""


class _Loader(yaml.SafeLoader):
    """Leaves ``4:00:00`` as it is written; to YAML 1.1 it is a number to the base 60, and so 14400."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping as it is written, where no key comes twice."""
        node, seen = super().compose_mapping_node(anchor), set()
        names = (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)) if node is not None else ()
        for name in names:
            if name.value in seen:
                raise _TwiceError(f"{shown(name.value)} is given twice, at line {name.start_mark.line + 1} again")
            seen.add(name.value)
        return node

    def whole_number(self, node: yaml.ScalarNode) -> Any:
        """What a scalar means that looks like a whole number."""
        return node.value if ":" in node.value else self.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)


@dataclass(frozen=True)
class Described:
    """A block of a file, with its name."""

    name: str
    block: StrictBlock

    @property
    def reference(self) -> str:
        """As Prefect writes it: ``gpu-cluster/lab``."""
        return f"{self.block.get_block_type_slug()}/{self.name}"


def read_file(path: Path) -> list[Described]:
    """The blocks of a YAML file.

    Raises:
        BlockError: It cannot be read, or a block is wrong. The message names file, field, value and remedy.
    """
    try:
        documents = [one for one in yaml.load_all(path.read_text(), _Loader) if one is not None]
    except OSError as error:
        raise BlockError(f"{path} cannot be read: {error.strerror}.") from None
    except _TwiceError as error:
        raise BlockError(f"{path}: {error}. Leave one of them out.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no text, a 30th of February, nested without end
        mark = getattr(error, "problem_mark", None)  # the error's own text shows the line, which may be a secret's
        place = f" at line {mark.line + 1}" if mark is not None else ""
        raise BlockError(f"{path} is no YAML{place}.") from None
    if not documents:
        raise BlockError(f"{path} describes no block: give block, name and the block's fields.")
    return [_described(path, one) for one in documents]


def save(described: Described, *, overwrite: bool = False) -> None:
    """Register a block, and its type if Prefect does not know that yet.

    Raises:
        BlockError: There is one already, its name is none, or Prefect cannot be asked.
    """
    try:
        described.block.save(described.name, overwrite=overwrite)
    except ValueError as error:
        if "already in use" in str(error):
            raise BlockError(f"{described.reference} is there already: --overwrite replaces it.") from None
        raise BlockError(f"{described.reference} could not be registered: {error}") from None
    except PrefectHTTPStatusError as error:  # its text may repeat the request
        raise BlockError(
            f"{described.reference} could not be registered: Prefect refused it (HTTP {error.response.status_code}). "
            "Names are lower-case letters, digits and dashes."
        ) from None
    except httpx.TransportError as error:
        raise BlockError(
            f"{described.reference} could not be registered: Prefect does not answer ({type(error).__name__}). Is "
            "PREFECT_API_URL right, and the server running?"
        ) from None


def _described(path: Path, document: Any) -> Described:
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise BlockError(f"{path}: a block is written as `field: value` lines.")
    kind, name = document.pop("block", None), document.pop("name", None)
    if not isinstance(kind, str) or kind not in KINDS:
        *most, last = sorted(KINDS)
        raise BlockError(f"{path}: block={shown(kind)} is not known: write {', '.join(most)} or {last}.")
    if not isinstance(name, str) or not name:
        raise BlockError(f"{path}: name={shown(name)}: give the block a name, such as name: lab.")
    try:
        raise_on_name_alphanumeric_dashes_only(name)
    except ValueError as error:
        raise BlockError(
            f"{path}: name={shown(name)} is no name for a block: write lower-case letters, digits and dashes."
        ) from error
    try:
        return Described(name, KINDS[kind].model_validate(_filled(document, path, iter(range(_MOST_VALUES)))))
    except RecursionError:
        raise BlockError(f"{path}: {kind}/{name}: it holds itself: write out what & and * stand for.") from None
    except ValidationError as error:
        raise BlockError(f"{path}: {kind}/{name}: {explain(error)}") from None


def _filled(value: Any, path: Path, budget: Iterator[int]) -> Any:
    """What stands for a file's content or an environment variable, replaced by it.

    Args:
        budget: One is taken from it for each value: a few lines may stand for billions.
    """
    if next(budget, None) is None:
        raise BlockError(f"{path}: it holds more than {_MOST_VALUES} values: is it the right file?")
    if isinstance(value, list):
        return [_filled(one, path, budget) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_FROM_FILE}:
        name = str(value[_FROM_FILE])
        try:
            file = path.parent / Path(name).expanduser()
            return file.read_text().strip()  # a line's end is no part of a password
        except (OSError, ValueError, RuntimeError) as error:  # no text, no path, nobody's home
            why = getattr(error, "strerror", None) or "it is no text, or no file's name"
            raise BlockError(f"{path}: from_file: {path.parent / name[:200]} cannot be read: {why}.") from None
    if set(value) == {_FROM_ENVIRONMENT}:
        name = str(value[_FROM_ENVIRONMENT])
        with contextlib.suppress(KeyError, ValueError):  # it is not there, or can be no variable's name
            return os.environ[name]
        readable = name[:200].encode("utf-8", "replace").decode()
        raise BlockError(f"{path}: from_environment: {readable} is not set: export it.")
    return {key: _filled(one, path, budget) for key, one in value.items()}
