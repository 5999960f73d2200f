"""The command ``prefect-gpu``. It needs what workers need, and says so where that is not installed."""

from __future__ import annotations

import sys

from prefect_gpu.extras import MissingExtra, must_have


def main() -> None:
    """Run the command."""
    try:
        must_have("worker", "The command prefect-gpu")
    except MissingExtra as error:
        sys.exit(f"Error: {error}")
    from prefect_gpu.cli import app

    app()


if __name__ == "__main__":
    main()
