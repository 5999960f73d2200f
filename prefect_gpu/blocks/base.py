"""What our blocks share: no unknown fields, and errors that never show what was given as a secret."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import ConfigDict, HttpUrl, SecretStr, ValidationError, model_validator

from prefect_gpu.links import DOCUMENTATION

# Whatever is given for these is never shown, be it as wrong as it may.
SECRET = frozenset({"ca", "certificate", "key", "ssh_key", "access_key_id", "secret_access_key", "session_token"})


class BlockError(ValueError):
    """A block cannot be used. The message names field, value and remedy, and shows no secret."""


class StrictBlock(Block):
    """A block whose fields are all known."""

    _documentation_url = HttpUrl(DOCUMENTATION)

    # Pydantic would show the whole input beside an error: the secrets, too.
    model_config = ConfigDict(hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            refuse_unknown(values, set(cls.model_fields) | {"block_type_slug"}, cls.get_block_type_slug())
        return values


def refuse_unknown(values: dict[str, Any], known: set[str], of: str) -> None:
    """Complain of a field that there is not.

    Raises:
        ValueError: The message names the first one, and those that there are.
    """
    for name in values:
        if name not in known and not str(name).startswith("_"):
            there_are = ", ".join(sorted(known - {"block_type_slug"}))
            raise ValueError(f"{name} is no field of {of}: there are {there_are}.")


def explain(error: ValidationError) -> str:
    """One sentence for each field that is wrong, with its value if that may be shown."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        said = problem["msg"].removeprefix("Value error, ").rstrip(".")
        if problem["type"] == "value_error" or not problem["loc"]:  # our own, which names the value if it may
            lines.append(f"{said}.")
            continue
        value = problem["input"]
        shown = isinstance(value, str | int | float) and problem["loc"][-1] not in SECRET
        place = ".".join(str(part) for part in problem["loc"]) + (f"={value!r}" if shown else "")
        lines.append(f"{place}: {said[0].lower()}{said[1:]}.")
    return " ".join(lines)


def plain(secret: SecretStr | None) -> str | None:
    """What a secret hides; None if it hides nothing."""
    return (secret.get_secret_value() or None) if secret is not None else None
