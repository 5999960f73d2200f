"""Where a bundle lies in the folder. The standard library only: these commands must start at once."""

from __future__ import annotations

from pathlib import Path


def bundle_path(directory: str | Path, key: str) -> Path:
    """The file that holds a bundle, or a sidecar of one such as ``files/<hash>.zip``.

    Raises:
        ValueError: The key would lead out of the folder.
    """
    root = Path(directory).expanduser().resolve()
    path = (root / key).resolve()
    if path == root or not path.is_relative_to(root):
        raise ValueError(f"key={key!r} does not name a file inside {root}: use the key that Prefect made.")
    return path
