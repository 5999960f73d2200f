"""A registry in a folder, and in S3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.retraining import ModelRegistry, RegistryError, history_page
from prefect_gpu.retraining.places import find_place
from tests.radosgw import BUCKET, S3Server
from tests.retraining.registry_suite import RegistrySuite


class TestFolder(RegistrySuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return str(tmp_path / "registry")

    def test_a_model_that_was_changed_is_not_used(self, models: ModelRegistry, model: Path) -> None:
        made = models.register(model, data_version="a")
        models.promote(made, "the first", instead_of=None)
        models.promote(models.register(model, data_version="b"), "better", instead_of=made)
        folder = Path(str(models.place)) / made.place
        next(folder.rglob("checkpoint.txt")).write_text("changed")
        with pytest.raises(RegistryError, match=r"v0001 in .* is not what was registered"):
            models.load(made, Path.read_text)
        with pytest.raises(RegistryError, match="is not what was registered"):
            models.roll_back()
        assert models.champion().name == "v0002", "nobody was rolled back to it"  # type: ignore[union-attr]

    def test_a_model_that_was_replaced_with_its_manifest_is_not_used(self, models: ModelRegistry, model: Path) -> None:
        made = models.register(model, data_version="a")
        model.write_text("another")
        models.place.below(made.place).store().save(lambda path: path.write_text("another"), step=0)
        with pytest.raises(RegistryError, match="is not what was registered"):
            models.load(made, Path.read_text)

    def test_a_model_that_changes_as_it_is_registered_is_what_was_copied(
        self, models: ModelRegistry, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = type(models.place.store())
        save = store.save

        def changes(self: Any, *args: Any, **more: Any) -> Any:
            kept = save(self, *args, **more)
            model.write_text("the next training's")
            return kept

        before = model.read_text()
        monkeypatch.setattr(store, "save", changes)
        assert models.load(models.register(model, data_version="a"), Path.read_text) == before

    def test_a_registration_that_was_cut_short_is_no_version(self, models: ModelRegistry, model: Path) -> None:
        models.place.below("models/00").store().save(lambda path: path.write_text("half"), step=0)
        assert models.versions() == [] and models.register(model, data_version="a").number == 1

    def test_what_a_newer_version_has_written_is_read(self, models: ModelRegistry, model: Path) -> None:
        made = models.register(model, data_version="a")
        record = Path(str(models.place)) / "versions" / "0001.json"
        record.write_text(record.read_text().replace("{", '{"new": 1,', 1))
        assert models.version("v0001") == made

    def test_a_champion_whose_record_is_gone_is_named_and_rolled_back_from(
        self, models: ModelRegistry, model: Path
    ) -> None:
        one, two = (models.register(model, data_version=data) for data in "ab")
        models.promote(one, "the first", instead_of=None)
        models.promote(two, "better", instead_of=one)
        (Path(str(models.place)) / "versions" / "0002.json").unlink()
        with pytest.raises(RegistryError, match=r"The champion cannot be read: version='v0002' .* or roll back"):
            models.champion()
        assert models.roll_back().champion == "v0001" and models.champion() == one

    def test_no_model_gets_the_name_of_a_champion_that_was_deleted(self, models: ModelRegistry, model: Path) -> None:
        one, two = (models.register(model, data_version=data) for data in "ab")
        models.promote(one, "the first", instead_of=None)
        models.promote(two, "better", instead_of=one)
        (Path(str(models.place)) / "versions" / "0002.json").unlink()
        new = models.register(model, data_version="c")
        assert new.name == "v0003" and models.judgement(new) is None

    def test_a_reason_of_several_lines_stays_in_its_column(self, models: ModelRegistry, model: Path) -> None:
        one = models.register(model, data_version="a")
        models.promote(one, "p50 | p99 are better\n\nsee the wiki", instead_of=None)
        last = history_page(models.decisions()).splitlines()[-1]
        assert last.startswith("| ") and last.endswith("| v0001 | p50 \\| p99 are better see the wiki |")

    def test_a_damaged_record_and_a_folder_that_is_none_are_named(self, models: ModelRegistry, model: Path) -> None:
        models.register(model, data_version="a")
        record = Path(str(models.place)) / "versions" / "0001.json"
        record.write_text("{")
        with pytest.raises(RegistryError, match=r"versions/0001\.json is not what was written there"):
            models.versions()
        with pytest.raises(RegistryError, match=r"could not be put into the registry|cannot be used"):
            ModelRegistry(model).register(model, data_version="a")
        with pytest.raises(RegistryError, match=r"model\.txt/decisions cannot be used: Not a directory\."):
            ModelRegistry(model).champion()

    @pytest.mark.parametrize(
        ("about", "said"),
        [
            ({"data_version": 3}, "data_version=3 is not allowed: give a text."),
            ({"metrics": {"l": "x"}}, "metrics['l']='x' (str) is not a number: pass a float"),
            ({"metrics": 0.5}, "metrics=0.5 is not allowed: give a dictionary, such as {'loss': 0.5}."),
            ({"parameters": ["lr"]}, "parameters=['lr'] is not allowed: give a dictionary, such as {'lr': 0.1}."),
            ({"metric": 0.5}, "metric=0.5 is not kept of a version. There are data_version, code_version, run, "),
            ({"data_version": " "}, "data_version=' ' names no data: give DataFiles(...).snapshot().version"),
        ],
    )
    def test_what_is_said_of_a_version_is_looked_at_before_it_is_kept_for_good(
        self, models: ModelRegistry, model: Path, about: dict[str, Any], said: str
    ) -> None:
        with pytest.raises((TypeError, ValueError), match=re.escape(said)):
            models.register(model, **{"data_version": "a", **about})
        assert models.versions() == [] and not Path(str(models.place)).exists(), "nothing was copied"

    def test_a_reason_that_is_no_text_is_refused(self, models: ModelRegistry, model: Path) -> None:
        """It was kept for good, and no page of decisions could be made of it any more."""
        made = models.register(model, data_version="a")
        with pytest.raises(TypeError, match=re.escape("reason=0.5 is not allowed: give a text.")):
            models.promote(made, 0.5, instead_of=None)  # type: ignore[arg-type]
        assert models.decisions() == []

    def test_a_model_may_be_named_by_a_text_and_a_version_by_its_number(
        self, models: ModelRegistry, model: Path
    ) -> None:
        made = models.register(str(model), data_version="a", metrics={"loss": float("nan")})
        assert models.version(1) == made and made.metrics == {"loss": None}


@pytest.mark.needs("s3")
class TestS3(RegistrySuite):
    @pytest.fixture
    def place(self, bucket: str) -> str:
        return bucket

    def test_a_server_that_is_away_is_said(self, s3: S3Server, bucket: str, model: Path) -> None:
        models = ModelRegistry(bucket.replace(BUCKET, "nobodys"))
        with pytest.raises(RegistryError, match=r"out of reach.*Make the bucket first"):
            models.champion()
        with pytest.raises(RegistryError, match="could not be put into the registry"):
            models.register(model, data_version="a", again=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://models", r"registry='ftp://models': ftp:// is not known"),
        ("s3://me:secret@models", "Credentials do not belong here"),
        ("block:gpu-cluster/lab", "the form is block:checkpoint-storage/NAME"),
        ("", "registry=''"),
        (" ", "registry=' ' is no place"),
        (None, "registry=None is no place: give the path of a folder"),
    ],
)
def test_a_place_that_is_none_is_refused(text: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_place(text, "registry")


def test_a_part_of_a_place_has_an_address_of_its_own() -> None:
    place = find_place("s3://models/digits?region=eu-central-1", "registry")
    assert place.below("versions").address == "s3://models/digits/versions?region=eu-central-1"
    assert find_place("models", "registry").address == str(Path.cwd() / "models")
