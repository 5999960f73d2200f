"""What holds for all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import settings

from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.lab.slurm_nodes import SlurmLab, started
from tests.forge import Forge
from tests.postgres import PostgresServer, postgres_server
from tests.radosgw import S3Server, s3_server
from tests.support import process_number

pytest_plugins = ["tests.lifetimes", "tests.selection", "pytester"]

settings.register_profile("ours", max_examples=50, deadline=None)  # nothing is asserted on time
settings.register_profile("long", max_examples=100, deadline=None)
settings.load_profile("ours")

_GIVEN = frozenset(os.environ)


def _load_on_one_thread() -> None:
    """Load what does sums on several threads, with one of them, and leave the environment as it was given.

    Where tests run side by side on all cores, threads that wait for each other take far longer than the sums.
    """
    ours = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ |= ours
    import scipy.linalg  # noqa: F401
    import sklearn.ensemble  # noqa: F401
    import xgboost  # noqa: F401

    for name in ours:
        del os.environ[name]


if "PYTEST_XDIST_WORKER" in os.environ and not {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"} & _GIVEN:
    _load_on_one_thread()


def pytest_collection_finish() -> None:
    """What has been imported stays: the collector of garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A private Prefect server, one for all tests of this process. A run there that hangs can say where it does."""
    folder, asked = tmp_path_factory.mktemp("sandbox"), {"PYTHONFAULTHANDLER": "1"}
    with closing(Forge()) as forge, Sandbox(folder, asked, popen=forge.start) as box:
        yield box


@pytest.fixture(scope="session")
def wide_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A private Prefect server that listens on all addresses of this machine, within the reach of containers."""
    folder = tmp_path_factory.mktemp("sandbox")
    with closing(Forge()) as forge, Sandbox(folder, host="0.0.0.0", popen=forge.start) as box:
        yield box


@pytest.fixture(scope="session")
def cluster() -> Iterator[Lab]:
    """Three Engines in one Swarm: see :mod:`tests.cluster`."""
    from tests.cluster import started

    with started() as running:
        yield running


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmLab]:
    """Three nodes of a real Slurm, the first in a rack of its own; one cluster for each process of the tests."""
    with started(number=process_number(), racks=2) as running:
        yield running


@pytest.fixture(scope="session")
def served_slurm() -> Iterator[SlurmLab]:
    """Two nodes of a real Slurm that has accounting, minds main memory, and is served by slurmrestd."""
    with started(nodes=2, number=100 + process_number(), services=True) as running:
        yield running


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, which containers and nodes reach, too. Each test has a prefix of its own in its one bucket."""
    with s3_server(tmp_path_factory.mktemp("s3"), listen="0.0.0.0") as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server."""
    with postgres_server() as server:
        yield server


def pytest_runtest_setup() -> None:
    """Give the processes that a test starts the environment that the tests were given.

    Importing scikit-learn sets variables for OpenMP (KMP_...), and a driver rightly takes them for a user's wish.
    """
    for name in os.environ.keys() - _GIVEN:
        if name.startswith("KMP_"):
            del os.environ[name]
