"""The distribution as users get it: built, checked, and installed in environments that have nothing of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.parser import BytesParser
from pathlib import Path

import pytest
from hatchling import build
from prefect import flow

from prefect_gpu import gpu
from prefect_gpu.bundles.storage import must_be_of_this_python
from tests.live.pool import LivePool

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
CONSTRAINTS = ("--constraints", str(ROOT / "constraints.txt"))
pytestmark = [pytest.mark.needs("index")]

# Trains, and submits a training of its own from where it runs: in the training environment, which serves no pool.
FLOWS = """
import sys
from pathlib import Path

from prefect import flow
from prefect_gpu import gpu, training_run

def trains(seen: str) -> float:
    with training_run(steps=3) as run:
        for step in run.steps():
            run.report(loss=1 / (step + 1), checkpoint=lambda path: Path(path).write_text("x"))
    with open(seen, "a") as file:
        print(sys.prefix, file=file)
    return 0.5

@flow
def deployed(seen: str) -> float:
    return trains(seen)

@flow
def submitted(seen: str) -> float:
    return trains(seen)

if __name__ == "__main__":
    pool, seen = sys.argv[1:]
    print(gpu(work_pool=pool, launcher=[sys.executable])(submitted).submit(seen=seen).result())
"""


def called(*command: object, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd="/", env=env, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def made(folder: Path, *packages: object, python: str = sys.executable) -> Path:
    """A new environment with these packages in it."""
    called(UV, "venv", "--quiet", "--python", python, folder)
    called(UV, "pip", "install", "--quiet", "--python", folder / "bin/python", *CONSTRAINTS, *packages)
    return folder


def packages_of(environment: Path) -> set[str]:
    listed = called(UV, "pip", "list", "--format", "json", "--python", environment / "bin/python").stdout
    return {one["name"] for one in json.loads(listed)}


def megabytes(environment: Path) -> float:
    return sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and path.suffix != ".pyc") / 1e6


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / build.build_wheel(str(folder)), folder / build.build_sdist(str(folder))


@pytest.fixture(scope="module")
def run_side(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as trainings have it: ``pip install prefect-gpu``."""
    return made(tmp_path_factory.mktemp("run-side"), built[0])


def outside(environment: Path, **more: str) -> dict[str, str]:
    """Variables of a shell in which an environment is active, and the checkout unknown."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "PYTHON"))}
    return kept | {"PATH": f"{environment / 'bin'}:/usr/bin:/bin", "VIRTUAL_ENV": str(environment)} | more


def test_the_packages_are_built_as_an_index_wants_them(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    called(UV, "tool", "run", *CONSTRAINTS, "twine", "check", "--strict", wheel, sdist)
    called(UV, "tool", "run", *CONSTRAINTS, "check-wheel-contents", wheel)
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        said = BytesParser().parsebytes(files.read(about))
    assert "prefect_gpu/py.typed" in names
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    assert "Programming Language :: Python :: 3.10" in said.get_all("Classifier", [])
    assert said["Version"] in wheel.name and said["Version"] in sdist.name


def test_an_sdist_gives_the_same_wheel_without_a_repository_and_without_an_index(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, sdist = built
    called("tar", "--extract", "--gzip", "--file", sdist, "--directory", tmp_path)
    (source,) = tmp_path.iterdir()
    from_sdist = tmp_path / "wheel"
    from_sdist.mkdir()
    code = f"import os; os.chdir({str(source)!r}); from hatchling import build; build.build_wheel({str(from_sdist)!r})"
    called(sys.executable, "-c", code, env={"PATH": "/nowhere"})
    (again,) = from_sdist.iterdir()
    assert again.name == wheel.name
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


def test_a_training_environment_gets_few_packages_beside_prefects_own(run_side: Path, tmp_path: Path) -> None:
    prefect = made(tmp_path / "prefect", "prefect", "fastapi<0.151")
    assert len(packages_of(run_side) - packages_of(prefect)) <= 12
    assert megabytes(run_side) - megabytes(prefect) <= 40


def pythons() -> dict[str, str]:
    """The interpreters of this machine that the classifiers name, by their version."""
    supported = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()))
    own = ".".join(map(str, sys.version_info[:2]))
    assert own in supported
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob("versions/*/bin/python3.*")
    there = [*map(Path, filter(None, (shutil.which(f"python{version}") for version in supported))), *kept]
    named = {path.name.removeprefix("python"): str(path) for path in there if path.parent.name != "shims"}
    return {version: named[version] for version in supported & named.keys()} | {own: sys.executable}


@pytest.mark.parametrize("version", sorted(pythons()))
def test_it_installs_and_trains_with_each_python(built: tuple[Path, Path], tmp_path: Path, version: str) -> None:
    environment = made(tmp_path / "environment", f"{built[0]}[worker]", python=pythons()[version])
    code = """
import sys
import prefect_gpu.worker.session
from prefect_gpu import training_run
with training_run(steps=2) as run:
    for _ in run.steps():
        run.report(loss=0.5)
print(*sys.version_info[:2], sep=".")
"""
    assert called("python", "-c", code, env=outside(environment)).stdout.strip() == version
    assert "estimate" in called("prefect-gpu", "--help", env=outside(environment)).stdout


def test_the_oldest_versions_that_pyproject_allows_serve_and_train(built: tuple[Path, Path], tmp_path: Path) -> None:
    """With the oldest Python there is, too: a lower bound that is not true is found nowhere else."""
    oldest = min(pythons(), key=lambda version: int(version.partition(".")[2]))
    environment = tmp_path / "environment"
    called(UV, "venv", "--quiet", "--python", pythons()[oldest], environment)
    install = (UV, "pip", "install", "--quiet", "--python", environment / "bin/python")
    extras = ("--extra", "worker", "--extra", "flows")
    called(*install, "--resolution", "lowest-direct", "--requirements", ROOT / "pyproject.toml", *extras)
    called(*install, "--no-deps", built[0])
    home = tmp_path / "home"
    env = outside(environment, HOME=str(home), PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES="2")
    folder = home / "my-training"
    called("prefect-gpu", "init", folder, env=env)
    called("sh", "-c", f"cd {folder} && prefect-gpu up", env=env)
    try:
        assert called("sh", "-c", f"cd {folder} && python train.py", env=env).stdout.count("loss") >= 4
        assert called("sh", "-c", f"cd {folder} && prefect-gpu history", env=env).stdout.count("completed") == 4
        assert "Usage" in called("prefect-gpu", "simulate", "--help", env=env).stdout
    finally:
        called("sh", "-c", f"cd {folder} && prefect-gpu down", env=env)


@pytest.mark.parametrize("version", sorted(pythons()))
def test_a_flow_is_submitted_to_an_interpreter_of_its_own_version_only(version: str) -> None:
    """An interpreter of another version dies of the code in the bundle, or finds no module that has it."""
    python = Path(pythons()[version]).resolve()
    if version == ".".join(map(str, sys.version_info[:2])):
        must_be_of_this_python([str(python)])
        return
    for launcher in ([str(python)], {"execution": [str(python)]}):
        with pytest.raises(ValueError, match=rf"launcher='{python}' is Python {version}, and this is Python 3"):
            gpu(work_pool="gpus", launcher=launcher)(flow(called)).ready()


@pytest.mark.parametrize(
    "command",
    [
        ("prefect-gpu", "status"),
        ("prefect", "worker", "start", "--type", "gpu", "--pool", "gpus"),
    ],
    ids=lambda command: command[0],
)
def test_what_serves_a_pool_names_the_extra_that_brings_it(
    run_side: Path, tmp_path: Path, command: Sequence[str]
) -> None:
    env = outside(run_side, PREFECT_HOME=str(tmp_path), PREFECT_API_URL="http://127.0.0.1:1/api")
    done = called(*command, env=env, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "pip install 'prefect-gpu[worker]'" in said and "scikit-learn" in said
    assert "Traceback" not in said and "Failed to load collection" not in said


def test_checkpoints_in_s3_name_the_extra_that_brings_it(run_side: Path) -> None:
    code = "from prefect_gpu.training.checkpoints.opening import open_store; open_store('s3://bucket/prefix')"
    done = called("python", "-c", code, env=outside(run_side), check=False)
    assert "Checkpoints in S3 need boto3, which is not installed: pip install 'prefect-gpu[s3]'" in done.stderr


def test_a_pool_is_made_from_a_training_environment_as_from_a_workers(run_side: Path) -> None:
    """The form in the UI and the job variables come from there."""
    code = (
        "import json; from prefect_gpu import GpuWorker; print(json.dumps(GpuWorker.get_default_base_job_template()))"
    )
    here = called(sys.executable, "-c", code, env=outside(run_side, PYTHONPATH=str(ROOT)))
    assert json.loads(called("python", "-c", code, env=outside(run_side)).stdout) == json.loads(here.stdout)


async def test_it_trains_in_a_pool_that_another_environment_serves(
    run_side: Path, pool: LivePool, tmp_path: Path
) -> None:
    """By a deployment, and by ``.submit()`` from within the training environment."""
    flows, seen = tmp_path / "flows.py", tmp_path / "seen"
    flows.write_text(FLOWS)
    pool.start_worker()
    python = run_side / "bin/python"
    variables = {"command": f"{python} -m prefect.engine"}
    first = await pool.submit("deployed", file=flows, job_variables=variables, seen=str(seen))
    await pool.until(first, "Completed")
    env = outside(run_side, PREFECT_API_URL=pool.sandbox.api_url, PREFECT_HOME=str(tmp_path / "home"))
    assert called(python, flows, pool.name, seen, env=env).stdout.split()[-1] == "0.5"
    assert seen.read_text().split() == [str(run_side)] * 2, "neither ran in the worker's environment"
    rows = await pool.rows([first])
    assert (rows[0].outcome, rows[0].steps_done) == ("completed", 3)
