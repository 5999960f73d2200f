"""The command ``prefect-gpu``. It needs what workers need, and says so where that is not installed."""

from __future__ import annotations

import errno
import os
import sys

from prefect_gpu.extras import MissingExtra, must_have


def main() -> None:
    """Run the command."""
    try:
        must_have("worker", "The command prefect-gpu")
    except MissingExtra as error:
        sys.exit(f"Error: {error}")
    from prefect_gpu.cli import app

    try:
        app()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left of it is lost, too
        sys.exit(f"Error: The output cannot be written: {error.strerror}.")


if __name__ == "__main__":
    main()
