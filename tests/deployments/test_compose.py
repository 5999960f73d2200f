"""`deployments/compose.yaml` on a real Engine: server, PostgreSQL, Redis and worker come up, and a training runs.

PostgreSQL and Redis are Debian's: the public images cannot be pulled where these tests run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from prefect_gpu.lab import docker_nodes
from prefect_gpu.lab.sandbox import wait_until
from tests import training_image

pytestmark = pytest.mark.needs("compose")
ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deployments" / "compose.yaml"


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker-compose", "--file", str(COMPOSE), *arguments],
        capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT, check=False,
    )  # fmt: skip


def test_what_is_not_filled_in_is_named() -> None:
    filled = {"ADDRESS": "10.0.0.1", "POSTGRES_PASSWORD": "x", "API_PASSWORD": "y"}
    for name in filled:
        told = compose("config", **filled | {name: ""})
        assert told.returncode != 0 and "set it in deployments/.env" in told.stderr, name
    assert compose("config", **filled).returncode == 0


@pytest.fixture
def node() -> Iterator[docker_nodes.LabNode]:
    """An Engine with the images."""
    image, standins = training_image.training_image("prefect-redis optuna pandas"), training_image.standins()
    folder = Path("/var/tmp/prefect-gpu-compose-lab")
    try:
        with docker_nodes.Lab(folder, nodes=1, prefix="pgc", subnet="10.80.0") as running:
            (only,) = running.nodes
            training_image.load(image, only.url)
            training_image.load(standins, only.url, training_image.STANDINS)
            yield only
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.needs("image")
@pytest.mark.timeout(1200)
def test_everything_comes_up_and_trains(node: docker_nodes.LabNode, tmp_path: Path) -> None:
    engine = {"DOCKER_HOST": node.url, "DOCKER_BUILDKIT": "0"}
    build = ["docker", "build", "--quiet", "--file", "deployments/image/flows.Dockerfile", "--tag", "trainings:1",
             "--build-arg", f"BASE_IMAGE={training_image.IMAGE}", "."]  # fmt: skip
    subprocess.run(build, cwd=ROOT, env={**os.environ, **engine}, check=True, capture_output=True)
    settings = {
        **engine,
        "COMPOSE_PROJECT_NAME": "prefect-gpu",
        "ADDRESS": node.address,
        "POSTGRES_PASSWORD": "kept-in-the-network",
        "API_PASSWORD": "of-those-who-may",
        "IMAGE": training_image.IMAGE,
        "POSTGRES_IMAGE": training_image.STANDINS,
        "REDIS_IMAGE": training_image.STANDINS,
        "DOCKER_SOCKET": (socket := node.url.removeprefix("unix://")),
        "WORKER_USER": "10001:10001",
        "DOCKER_GROUP": str(os.stat(socket).st_gid),
        "PREFECT_INTEGRATIONS_GPU_DRIVER": "docker",
        "PREFECT_INTEGRATIONS_GPU_IMAGE": "trainings:1",
    }
    up = compose("up", "--detach", **settings)
    assert up.returncode == 0, up.stderr

    def logs(*services: str) -> str:
        return compose("logs", *services, **settings).stdout

    wait_until(lambda: "Watch the pool" in logs("worker"), what="the worker and its page", every_s=1.0, timeout_s=120)
    api = {"PREFECT_API_URL": f"http://{node.address}:4200/api", "PREFECT_HOME": str(tmp_path)}
    user = compose("exec", "-T", "worker", "id", "--user", **settings)
    assert user.stdout.strip() == "10001", user.stderr
    stranger = httpx.post(f"{api['PREFECT_API_URL']}/work_pools/filter", json={}, trust_env=False)
    assert stranger.status_code == 401
    assert httpx.get(f"http://{node.address}:4280/api/overview", trust_env=False).status_code == 401
    api["PREFECT_API_AUTH_STRING"] = "prefect:of-those-who-may"

    def prefect(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=ROOT, env={**os.environ, **api}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs()[-4000:]}"
        return done.stdout

    prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect-containers.yaml")
    assert "finished successfully" in prefect("deployment", "run", "train-mlp/gpus", "--watch")
    assert f"gave this run {node.name}/virtual-" in logs("worker")
    assert "kept-in-the-network" not in logs() and "of-those-who-may" not in logs()
