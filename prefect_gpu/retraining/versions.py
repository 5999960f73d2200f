"""What a registry of models consists of: versions, and decisions about them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from prefect_gpu.retraining.records import RegistryError
from prefect_gpu.training import checks
from prefect_gpu.training.checkpoints.manifest import facts_of, files_of

Action = Literal["promoted", "kept", "rolled back"]


class Superseded(RegistryError):
    """Another decision came first, and the champion is not who it was: compare with the new one."""


class AlreadyRegistered(RegistryError):
    """There is a version that was trained on these data. It is :attr:`version`."""

    def __init__(self, version: Version) -> None:
        super().__init__(f"{version.name} was trained on the same data, {version.data_version}.")
        self.version = version


@dataclass(frozen=True)
class Version:
    """One model. It never changes.

    Attributes:
        number: From 1.
        created_at: In ISO 8601.
        sha256: Of the model's file, or of the names and hashes of its files.
        size_bytes: Of all its files.
        place: Where below the registry they are.
        data_version: Which data it was trained on.
        code_version: Which code trained it.
        run: The flow run that trained it, as an id, and ``run_url`` where to look at it; empty outside of Prefect.
        metrics: How good it was when it was trained; None: that is not defined (NaN or infinite).
        parameters: What it was trained with.
    """

    number: int
    created_at: str
    sha256: str
    size_bytes: int
    place: str
    data_version: str
    code_version: str = ""
    run: str = ""
    run_url: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As people write it: ``v0003``."""
        return version_name(self.number)


@dataclass(frozen=True)
class Decision:
    """What was decided about a version.

    Attributes:
        number: From 1, in their order.
        action: The version was promoted, the champion was kept, or it was rolled back to the version.
        version: The version that was judged.
        champion: Who is in use since; empty: nobody.
        reason: Why, in plain words.
        at: In ISO 8601.
        run, run_url: The flow run that decided.
        facts: The numbers behind it.
    """

    number: int
    action: Action
    version: str
    champion: str
    reason: str
    at: str
    run: str = ""
    run_url: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


_TEXTS = ("data_version", "code_version", "run", "run_url")
_TABLES = {"metrics": {"loss": 0.5}, "parameters": {"lr": 0.1}}  # with an example of each


def checked(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a version that is to be made, with its metrics as numbers. It is kept for good.

    Raises:
        TypeError: It is of another kind, or unknown. The message names it, and what to give.
        ValueError: It does not say which data it was trained on.
    """
    for name, value in about.items():
        if name not in (*_TEXTS, *_TABLES):
            raise TypeError(f"{name}={value!r} is not kept of a version. There are {', '.join((*_TEXTS, *_TABLES))}.")
        if name in _TEXTS and not isinstance(value, str):
            raise TypeError(f"{name}={value!r} is not allowed: give a text.")
        if name in _TABLES and not isinstance(value, Mapping):
            raise TypeError(f"{name}={value!r} is not allowed: give a dictionary, such as {_TABLES[name]}.")
    if not (data_version := about["data_version"]).strip():
        raise ValueError(f"{data_version=} names no data: give DataFiles(...).snapshot().version, or a word of yours.")
    measured = {f"metrics[{name!r}]": value for name, value in about.get("metrics", {}).items()}
    return {**about, "metrics": dict(zip(about.get("metrics", {}), checks.metrics(measured).values(), strict=True))}


def digest(model: Path) -> str:
    """The SHA-256 of a file; of a folder, that of the names and hashes of its files."""
    if model.is_file():
        return facts_of(model).sha256
    lines = [f"{file.relative_to(model).as_posix()} {facts_of(file).sha256}\n" for file in files_of(model)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def version_name(number: int) -> str:
    """As people write it: ``v0003``."""
    return f"v{number:04d}"
