"""The components that some tests need beside Python: one row each, and how a test says that it needs one.

A test says ``@pytest.mark.needs("pytorch")``, or uses one of the fixtures that a row names. It then belongs to
``make test-all``. Where the component is missing, the test is skipped; where CI is set, it fails, as CI has all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks._chromium import CHROMIUM
from prefect_gpu.lab import checkout, slurm_nodes
from prefect_gpu.lab.docker_nodes import NEEDED, SHAPING, missing
from tests import postgres, radosgw, small_disk, training_image

_SBIN = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Component:
    """Something that a machine may lack.

    Attributes:
        title: As a person would say it after "needs".
        missing: What the machine lacks of it; empty where it is there.
        fixtures: A test that uses one of these, itself or through another fixture, needs the component.
        shared: It is started for many tests, which therefore run in one process.
    """

    title: str
    missing: Callable[[], list[str]]
    fixtures: frozenset[str] = field(default_factory=frozenset)
    shared: bool = False


def programs(*names: str) -> Callable[[], list[str]]:
    """What is missing of these programs."""
    return lambda: [f"the program {name}" for name in names if shutil.which(name, path=_SBIN) is None]


def packages(*names: str, extra: str) -> Callable[[], list[str]]:
    """What is missing of these Python packages, which an extra of ours installs."""
    return lambda: [f"{name} (pip install 'prefect-gpu[{extra}]')" for name in names if find_spec(name) is None]


def _index() -> list[str]:
    """Whether packages can be installed: the two that only one test uses are not in an environment of ours."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        return ["the program uv beside Python (make env)"]
    asked = [str(uv), "pip", "install", "--dry-run", "--quiet", "--python", sys.executable, "check-wheel-contents"]
    return [] if subprocess.run(asked, capture_output=True, check=False).returncode == 0 else ["pip's package index"]


def traces_folder() -> Path:
    """Folder of published job traces: ``PREFECT_GPU_TRACES``, or ``shared/traces`` beside the checkout.

    Who asks for it is marked with ``needs("traces")``.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "traces"
    return Path(os.environ.get("PREFECT_GPU_TRACES") or beside)


def _traces() -> list[str]:
    folder = traces_folder()
    return [] if folder.is_dir() else [f"the folder {folder} (set PREFECT_GPU_TRACES to another)"]


COMPONENTS = {
    "compiler": Component("a C compiler", programs("gcc"), frozenset({"nvml"})),
    "openssl": Component("openssl", programs("openssl")),
    "openssh": Component("OpenSSH", programs("sshd", "ssh-keygen", "ssh")),
    "chromium": Component("Chromium", programs(str(CHROMIUM)), frozenset({"browser"})),
    "postgresql": Component("PostgreSQL", postgres.missing, frozenset({"postgres"}), shared=True),
    "s3": Component(
        "an S3 server (Ceph's object gateway)", radosgw.missing, frozenset({"s3", "s3_with_roles"}), shared=True
    ),
    "engines": Component("Docker Engines of its own", checkout.missing, frozenset({"cluster", "gpu_lab"}), shared=True),
    "slurm": Component("a Slurm of its own", slurm_nodes.missing, frozenset({"slurm"}), shared=True),
    "slurm services": Component(
        "a Slurm of its own with accounting and slurmrestd",
        slurm_nodes.services_missing,
        frozenset({"served_slurm"}),
        shared=True,
    ),
    "image": Component("Docker Engines that build images", training_image.missing),
    "prometheus": Component("Prometheus", programs("prometheus")),
    "small disk": Component("a file system that a test may fill", small_disk.missing, frozenset({"small_disk"})),
    "compose": Component("docker-compose", programs("docker-compose")),
    "networks": Component("shaped networks", lambda: missing(*NEEDED[1:], *SHAPING)),
    "pytorch": Component("PyTorch", packages("torch", extra="frameworks")),
    "frameworks": Component(
        "Lightning, Transformers and Keras",
        packages("torch", "lightning", "transformers", "accelerate", "keras", extra="frameworks"),
    ),
    "mlflow": Component("MLflow", packages("mlflow", extra="mlflow")),
    "rl": Component("stable-baselines3", packages("torch", "stable_baselines3", "sb3_contrib", extra="rl")),
    "traces": Component("published job traces", _traces),
    "index": Component("a package index", _index),
}


def needed(item: pytest.Item) -> list[str]:
    """Names of the components that a test needs, in the order of the table.

    Raises:
        pytest.UsageError: A mark names a component that the table does not have.
    """
    marked = {name for mark in item.iter_markers("needs") for name in mark.args}
    if unknown := marked - COMPONENTS.keys():
        raise pytest.UsageError(f"{item.nodeid}: needs({', '.join(unknown)}), of which tests/components.py has no row")
    fixtures = frozenset(getattr(item, "fixturenames", ()))
    return [name for name, one in COMPONENTS.items() if name in marked or one.fixtures & fixtures]


def require_all(names: Iterable[str]) -> None:
    """Skip the test where one of the components is missing; fail instead where CI is set.

    Args:
        names: Keys of :data:`COMPONENTS`.
    """
    for name in names:
        if lacking := _missing(name):
            require(f"{COMPONENTS[name].title} ({', '.join(lacking)})", False)


def require(what: str, found: object) -> None:
    """Skip the test where a condition of the machine does not hold; fail instead where CI is set.

    Args:
        what: What is needed, as a person would say it: ``"two cores"``.
        found: Whatever shows that it is there; anything false means that it is not.

    Example:
        >>> require("root's rights", os.getuid() == 0)
    """
    if found:
        return
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI is set: this test must not be skipped there.", pytrace=False)
    pytest.skip(f"{what}: not on this machine")


def require_commit(commit: str) -> None:
    """Skip the test where this clone has not the commit, also where CI is set: CI may clone without a past."""
    look = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(look, cwd=Path(__file__).parent, capture_output=True, check=False).returncode:
        pytest.skip(f"the commit {commit} is not in this clone: git fetch --unshallow")


_missing = cache(lambda name: COMPONENTS[name].missing())
