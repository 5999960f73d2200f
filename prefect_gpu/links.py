"""Addresses that Prefect's pages show beside our types: where to read about them, and a picture for each.

The project has no website. It has a name that ``pip install`` knows, and so the page of that name, which shows the
README of the newest release. Prefect wants a logo to be a PNG at an http address, and we have no place for one: ours
are those of Prefect's own types for the same things. ``tests/blocks/test_prefect_standards.py`` compares them.
"""

from __future__ import annotations

DOCUMENTATION = "https://pypi.org/project/prefect-gpu/"
"""Where the package is published; pyproject.toml says the same."""

_LOGOS = (
    "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"
)
LOGO_OF_FILES = f"{_LOGOS}/filesystem.png"
"""What Prefect's file systems show."""
LOGO_OF_PROCESSES = f"{_LOGOS}/process.png"
"""What Prefect's process worker shows."""
