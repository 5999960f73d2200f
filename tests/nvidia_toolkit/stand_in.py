"""What stands in for NVIDIA's container toolkit: see the package. Called by runc or in its place, never imported.

``stand_in.py nvidia-container-runtime FOLDER ...`` is an OCI runtime: it adds mounts to a container that is created,
and leaves all else to runc. ``stand_in.py nvidia-container-runtime-hook FOLDER prestart`` is a hook that mounts into a
container which runc has set up. Both read from the container's environment what the real ones read there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBRARY = "/usr/lib/libnvidia-ml.so.1"
STATE = "/run/nvml-stub"


def wanted(environment: list[str]) -> list[str] | None:
    """The names of the GPUs that a container is to have; None: it has nothing to do with GPUs."""
    given = dict(entry.split("=", 1) for entry in environment)  # of one that is there twice, the last counts
    names = given.get("NVIDIA_VISIBLE_DEVICES", "")
    if names in ("", "void"):
        return None
    capabilities = (given.get("NVIDIA_DRIVER_CAPABILITIES") or "compute,utility").split(",")
    if not {"utility", "all"} & set(capabilities):
        return None  # the real one leaves out NVML then
    return [] if names == "none" else names.split(",")


class UnknownDevice(Exception):
    """There is no such GPU."""


def visible(state: list[str], names: list[str]) -> list[str]:
    """The lines of the GPUs with these names, and what belongs to them."""
    lines, left, shown = [], set(names) - {"all"}, True
    for line in state:
        fields = dict(field.split("=", 1) for field in line.split("|")[1:] if "=" in field)
        if line.startswith("gpu|"):
            shown = names == ["all"] or fields["uuid"] in names
            left.discard(fields["uuid"])
        if shown or line.startswith("driver"):
            lines.append(line)
    if left:
        raise UnknownDevice(f"stand-in for nvidia-container-cli: device error: {left.pop()}: unknown device")
    return lines


def mounts(folder: Path, bundle: Path, config: dict[str, Any]) -> list[tuple[Path, str]]:
    """What is mounted where for a container."""
    names = wanted(config["process"]["env"])
    if names is None:
        return []
    shown = bundle / "nvml-stub"
    lines = visible((folder / "state").read_text().splitlines(), names)
    shown.write_text("".join(f"{line}\n" for line in lines))
    return [(folder / "libnvidia-ml.so.1", LIBRARY), (shown, STATE)]


def runtime(folder: Path, arguments: list[str]) -> None:
    """Be the OCI runtime."""
    if "create" in arguments:
        bundle = Path(arguments[arguments.index("--bundle") + 1])
        path = bundle / "config.json"
        config = json.loads(path.read_text())
        try:
            wanted_here = mounts(folder, bundle, config)
        except UnknownDevice as error:
            said = json.dumps({"level": "error", "msg": str(error)})
            Path(arguments[arguments.index("--log") + 1]).write_text(f"{said}\n")  # as runc reports what went wrong
            sys.exit(1)
        config["mounts"] += [
            {"destination": to, "type": "bind", "source": str(source), "options": ["bind", "ro"]}
            for source, to in wanted_here
        ]
        path.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *arguments])


def hook(folder: Path) -> None:
    """Be the hook: the container's mounts are set up, and its root is not yet its root."""
    state = json.load(sys.stdin)
    bundle = Path(state["bundle"])
    config = json.loads((bundle / "config.json").read_text())
    root = bundle / config["root"]["path"]  # which is absolute, or in the bundle
    for source, to in mounts(folder, bundle, config):
        inside = ["nsenter", f"--target={state['pid']}", "--mount"]
        subprocess.run([*inside, "touch", f"{root}{to}"], check=True)
        subprocess.run([*inside, "mount", "--bind", str(source), f"{root}{to}"], check=True)


if __name__ == "__main__":
    role, home, *rest = sys.argv[1:]
    if role.endswith("-hook"):
        try:
            hook(Path(home))
        except UnknownDevice as error:
            sys.exit(str(error))
    else:
        runtime(Path(home), rest)
