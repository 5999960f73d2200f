"""What goes into the image of `deployments/image`, and as whom it runs."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deployments" / "image"


def pinned(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Names of what a file of requirements pins: each with its versions, and what stands behind them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE)):
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry):
            found.setdefault(match[1].lower().replace("_", "-"), []).append((match[2], entry))
    return found


def test_every_file_is_known_by_its_hash_and_of_the_version_that_is_tested() -> None:
    tested = pinned(ROOT / "constraints.txt")
    image = pinned(IMAGE / "requirements.txt") | pinned(IMAGE / "uv.txt")
    for name, entries in image.items():
        assert {version for version, _ in entries} <= {version for version, _ in tested[name]}, f"{name}: make it anew"
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for _, entry in entries), name
    project = (ROOT / "pyproject.toml").read_text()
    asked = "".join(
        project.partition(f"\n{of} = [\n")[2].partition("\n]")[0] + "\n" for of in ("dependencies", "worker")
    )
    needed = {Requirement(one).name.lower() for one in re.findall(r'^  "([^"]+)"', asked, flags=re.MULTILINE)}
    assert {"prefect", "docker"} <= needed
    assert needed <= image.keys(), f"{needed - image.keys()}: make deployments/image/requirements.txt anew, as it says"


def test_it_is_installed_by_these_hashes_and_does_not_run_as_root() -> None:
    steps = (IMAGE / "Dockerfile").read_text()
    assert "pip install --no-cache-dir --quiet --require-hashes --requirement uv.txt" in steps
    assert "--require-hashes --requirement requirements.txt" in steps
    users = [line.split()[1] for line in steps.splitlines() if line.startswith("USER ")]
    assert users and users[-1].partition(":")[0] not in ("0", "root")
