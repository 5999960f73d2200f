"""What ``pip install prefect-gpu`` leaves out, since a training environment needs none of it."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

_DISTRIBUTION = "prefect-gpu"
_ALSO = {"xgboost": "xgboost-cpu"}  # the same modules under another name


class MissingExtra(ImportError):
    """What is to be done needs an extra of prefect-gpu. The message names it, what is missing, and the command."""


def must_have(extra: str, what: str) -> None:
    """Refuse to begin what would fail later, for want of a package.

    Args:
        extra: One of the optional dependencies in pyproject.toml.
        what: What needs it, as the subject of a sentence.

    Raises:
        MissingExtra: Packages of the extra are not installed.
    """
    if missing := lacking(extra):
        are = "which is not installed" if len(missing) == 1 else "which are not installed"
        raise MissingExtra(f"{what} needs {', '.join(missing)}, {are}: pip install '{_DISTRIBUTION}[{extra}]'")


def lacking(extra: str) -> list[str]:
    """Names of the packages of an extra that are not installed.

    A package that is there under another name counts, as ``xgboost-cpu`` does for ``xgboost``. If prefect-gpu is not
    installed itself, but found on PYTHONPATH, its extras are unknown. Then none is taken to be missing.
    """
    try:
        needed = [Requirement(one) for one in metadata.requires(_DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        return []
    names = {one.name for one in needed if one.marker is not None and one.marker.evaluate({"extra": extra})}
    return sorted(name for name in names if not _is_installed(name))


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return name in _ALSO and _is_installed(_ALSO[name])
    return True
