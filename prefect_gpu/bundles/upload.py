"""Bundle upload step: put a file into the local bundle folder.

``python -m prefect_gpu.bundles.upload --directory FOLDER --key KEY FILE``
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from prefect_gpu.bundles.folder import bundle_path


def upload(file: str | Path, directory: str | Path, key: str) -> Path:
    """Copy a file into the folder, so that it is there whole or not at all.

    Args:
        file: What to copy.
        directory: The bundle folder. It is made if it is missing, readable by its owner alone: a bundle
            holds code that a worker runs.
        key: The name in the folder.

    Returns:
        The copy.
    """
    target = bundle_path(directory, key)
    Path(directory).expanduser().mkdir(parents=True, exist_ok=True, mode=0o700)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    try:
        with os.fdopen(handle, "wb") as copy, open(file, "rb") as source:
            shutil.copyfileobj(source, copy)
        os.replace(partial, target)
    except BaseException:
        os.unlink(partial)
        raise
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m prefect_gpu.bundles.upload", description=__doc__)
    parser.add_argument("--directory", required=True, help="the bundle folder")
    parser.add_argument("--key", required=True, help="the name in the folder")
    parser.add_argument("file", help="the file to put there")
    options = parser.parse_args(arguments)
    try:
        upload(options.file, options.directory, options.key)
    except OSError as error:  # a full disk, say
        sys.exit(
            f"Error: the flow cannot be put into {options.directory}: {error.strerror}. See that there is room, and "
            "that this user may write there."
        )


if __name__ == "__main__":
    main()
