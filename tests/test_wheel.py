"""What is installed with the package, beside its modules."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling import build

from prefect_gpu.papers.deepshare.shipped import available, policy_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return zipfile.ZipFile(folder / build.build_wheel(str(folder)))


def test_the_wheel_has_the_migrations_of_the_history(wheel: zipfile.ZipFile) -> None:
    here = Path("prefect_gpu/storage/migrations")
    wanted = {str(path.relative_to(ROOT)) for path in ((ROOT / here).rglob("*.py"))}
    assert f"{here}/env.py" in wanted and len(wanted) > 6
    assert wanted <= set(wheel.namelist())


def test_the_wheel_has_the_trained_policies_and_their_records(wheel: zipfile.ZipFile) -> None:
    here = "prefect_gpu/papers/deepshare/weights"
    found = {name for name in wheel.namelist() if name.startswith(here)}
    assert available()
    assert found >= {f"{here}/deepshare-{one.lower()}.{kind}" for one in available() for kind in ("npz", "json")}
    for name in found:
        assert wheel.read(name) == (ROOT / name).read_bytes()
        if name.endswith(".npz"):
            policy_of(wheel.read(name))
