"""What a registry promises, wherever it is: the tests of a folder and of S3 are subclasses."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from prefect_gpu.retraining import (
    AlreadyRegistered,
    DataFiles,
    ModelRegistry,
    RegistryError,
    Superseded,
    Version,
    contest,
)


class RegistrySuite:
    """A subclass has the fixture `place`: the address of an empty place."""

    @pytest.fixture
    def models(self, place: str) -> ModelRegistry:
        return ModelRegistry(place)

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        path = tmp_path / "model.txt"
        path.write_text("weights")
        return path

    def test_versions_are_kept_with_what_is_known_of_them(self, models: ModelRegistry, model: Path) -> None:
        assert models.versions() == [] and models.champion() is None and models.decisions() == []
        made = models.register(
            model, data_version="a", metrics={"loss": 0.5}, parameters={"lr": 0.1}, code_version="c0ffee", run="r"
        )
        assert made.name == "v0001" and made.size_bytes == 7
        model.write_text("other weights")
        models.register(model, data_version="b")
        assert models.versions()[0] == models.version("v0001") == models.version("1") == made
        assert models.load(made, Path.read_text) == "weights"
        with pytest.raises(RegistryError, match=r"version='v9' is not in the registry .* there: v0001, v0002"):
            models.version("v9")
        for use in (
            lambda: models.load("v0001", Path.read_text),  # type: ignore[arg-type]
            lambda: models.promote("v0001", "", instead_of=None),  # type: ignore[arg-type]
            lambda: models.promote(made, "", instead_of="v0001"),  # type: ignore[arg-type]
            lambda: models.keep(made, "", champion="v0001"),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError, match=r"='v0001' is no Version: give registry.version\('v0001'\)."):
                use()
        with pytest.raises(TypeError, match=r"version=None is no Version: .* nobody is champion yet"):
            models.load(models.champion(), Path.read_text)  # type: ignore[arg-type]

    def test_numbers_of_numpy_and_what_json_does_not_know_are_kept(self, models: ModelRegistry, model: Path) -> None:
        about = {"metrics": {"loss": np.float32(0.5)}, "parameters": {"folder": Path("data"), "layers": np.int64(3)}}
        made = models.register(model, data_version="a", **about)
        assert models.version("v0001") == made
        assert (made.metrics, made.parameters) == ({"loss": 0.5}, {"folder": "data", "layers": 3})
        models.promote(made, "the first", instead_of=None, facts={"gain": np.float32(0.25), "sure": np.bool_(True)})
        assert models.decisions()[0].facts == {"gain": 0.25, "sure": True}

    def test_a_folder_is_a_model_too(self, models: ModelRegistry, tmp_path: Path) -> None:
        (tmp_path / "model" / "layers").mkdir(parents=True)
        (tmp_path / "model" / "layers" / "1").write_text("weights")
        made = models.register(tmp_path / "model", data_version="a")
        assert models.load(made, lambda path: (path / "layers" / "1").read_text()) == "weights"
        (tmp_path / "empty" / "layers").mkdir(parents=True)
        with pytest.raises(ValueError, match=r"model='.*empty' is a folder without files"):
            models.register(tmp_path / "empty", data_version="b")
        assert models.versions() == [made]

    def test_there_is_one_version_of_the_same_data_unless_another_is_wanted(
        self, models: ModelRegistry, model: Path
    ) -> None:
        first = models.register(model, data_version="a")
        with pytest.raises(AlreadyRegistered, match=r"v0001 was trained on the same data") as found:
            models.register(model, data_version="a")
        assert found.value.version == first and models.of_data("a") == first and models.of_data("b") is None
        assert models.register(model, data_version="a", again=True).name == "v0002"

    def test_the_champion_is_switched_and_rolled_back(self, models: ModelRegistry, model: Path) -> None:
        one, two, three = (models.register(model, data_version=data) for data in "abc")
        with pytest.raises(RegistryError, match="no champion before this one"):
            models.roll_back()
        models.promote(one, "the first", instead_of=None)
        models.promote(two, "better", instead_of=one)
        models.keep(three, "not better", champion=two)
        assert models.champion() == two and models.judgement(three).action == "kept"  # type: ignore[union-attr]
        models.promote(three, "better after all", instead_of=two, facts={"p_value": 0.01})
        models.promote(three, "still better", instead_of=three)
        assert models.roll_back(reason="it is slow").champion == "v0002"
        assert models.roll_back().champion == "v0001", "twice in a row goes back by two"
        assert models.roll_back("v0003").champion == "v0003"
        assert models.roll_back().champion == "v0001"
        with pytest.raises(RegistryError, match="version='v0001' is the champion already"):
            models.roll_back("v0001")
        assert [one.number for one in models.decisions()] == [*range(1, 10)]
        assert models.decisions()[5].reason == "it is slow" and models.decisions()[3].facts == {"p_value": 0.01}

    def test_a_promotion_that_was_compared_with_another_champion_does_not_count(
        self, models: ModelRegistry, model: Path
    ) -> None:
        one, two, three = (models.register(model, data_version=data) for data in "abc")
        models.promote(one, "the first", instead_of=None)
        models.promote(two, "better", instead_of=one)
        for instead_of in (one, None):
            with pytest.raises(Superseded, match="v0002 is the champion by now"):
                models.promote(three, "better", instead_of=instead_of)
        with pytest.raises(Superseded):
            models.keep(three, "worse", champion=one)
        assert models.champion() == two and len(models.decisions()) == 2

    def test_a_challenger_that_another_run_has_made_the_champion_meanwhile_is_not_judged_again(
        self, models: ModelRegistry, model: Path
    ) -> None:
        """Two runs may be about the same data: one that the event has started, and one of the schedule."""
        one, two = (models.register(model, data_version=data) for data in "ab")
        models.promote(one, "the first", instead_of=None)

        def losses(_: str) -> list[float]:
            if models.champion() == one:
                models.promote(two, "better", instead_of=one)
            return [0.0, 1.0]

        found = contest(models, two, load=Path.read_text, losses=losses)
        assert found.decision == models.decisions()[-1] == models.judgement(two)
        assert found.decision.action == "promoted" and found.comparison is None
        assert "# v0002 is the champion" in found.page

    @pytest.mark.parametrize("found", [[0.5, float("nan")], [[0.5], [0.5]], 0.5])
    def test_a_first_model_whose_losses_are_none_is_no_champion(
        self, models: ModelRegistry, model: Path, found: Any
    ) -> None:
        """Nobody could be compared with it afterwards: each later contest would end with an error."""
        first = models.register(model, data_version="a")
        with pytest.raises(ValueError, match="challenger has"):
            contest(models, first, load=Path.read_text, losses=lambda _: found)
        place: Any = str(models.place)
        with pytest.raises(TypeError, match=re.escape(f"is no registry: give ModelRegistry({place!r}).")):
            contest(place, first, load=Path.read_text, losses=lambda _: found)
        assert models.champion() is None

    @pytest.mark.parametrize(
        ("old", "promoted", "said"),
        [
            ([float("nan")] * 40, True, "v0001 has no answer (NaN) for 40 of 40 examples: v0002 has one for each."),
            ([float("nan")] * 20 + [0.2] * 20, True, "it is better. v0001 has no answer (NaN) for 20 of 40 examples"),
            ([float("nan")] + [0.2] * 39, False, "v0001 has no answer (NaN) for 1 of 40 examples, which counts as"),
        ],
    )
    def test_a_champion_without_answers_does_not_keep_its_place_for_ever(
        self, models: ModelRegistry, model: Path, old: list[float], promoted: bool, said: str
    ) -> None:
        """On data that have drifted. Each later contest ended with an error, however good the challenger was."""
        one, two = (models.register(model, data_version=data) for data in "ab")
        models.promote(one, "the first", instead_of=None)
        asked = iter([[0.2, *[0.1, 0.3] * 19, 0.4], old])
        found = contest(models, two, load=Path.read_text, losses=lambda _: next(asked))
        assert (found.decision.action == "promoted") is promoted and said in found.decision.reason
        assert models.champion() == (two if promoted else one)
        assert said in found.page and "v0001, the champion" in found.page and "first champion" not in found.page

    def test_a_champion_that_fails_where_the_challenger_does_not_is_named_with_the_remedy(
        self, models: ModelRegistry, model: Path
    ) -> None:
        """Its class is gone, or data have other columns. The error did not say which of the two models it was about."""
        one, two = (models.register(model, data_version=data) for data in "ab")
        models.promote(one, "the first", instead_of=None)
        asked: list[str] = []

        def losses(model: str) -> list[float]:
            asked.append(model)
            if len(asked) == 2:
                raise ValueError("X has 5 features, but the model expects 4")
            return [0.5, 1.0]

        with pytest.raises(RegistryError, match=r"^v0001, the champion, .* has 5 features.* v0002 can") as failed:
            contest(models, two, load=Path.read_text, losses=losses)
        said = re.search(r"registry\.promote\(.*\)(?=\.$)", str(failed.value))
        assert said is not None and eval(said[0], {"registry": models}).champion == "v0002"

    def test_of_all_who_come_at_the_same_time_none_is_lost(self, place: str, model: Path) -> None:
        start = Barrier(6)

        def register(number: int) -> Version:
            models = ModelRegistry(place)
            start.wait()
            return models.register(model, data_version=f"data {number % 5}")  # two come with the same data

        def promote(version: Version) -> int:
            models = ModelRegistry(place)
            start.wait()
            while True:
                try:
                    return models.promote(version, "better", instead_of=models.champion()).number
                except Superseded:
                    continue

        with ThreadPoolExecutor(6) as threads:
            ended = [threads.submit(register, number) for number in range(6)]
            refused = [one for one in ended if isinstance(one.exception(), AlreadyRegistered)]
            versions = [one.result() for one in ended if one not in refused]
            assert len(refused) == 1 and sorted(one.number for one in versions) == [1, 2, 3, 4, 5]
            numbers = sorted(threads.map(promote, [*versions, versions[0]]))
        models = ModelRegistry(place)
        assert numbers == [*range(1, 7)], f"promotions were numbered {numbers}"
        assert models.versions() == sorted(versions, key=lambda one: one.number)
        assert models.champion().name == models.decisions()[-1].version  # type: ignore[union-attr]

    def test_a_set_of_data_has_a_version_for_its_content(self, place: str) -> None:
        files = DataFiles(place, "batch-*")
        empty = files.snapshot()
        files.add("batch-1", b"one")
        files.add("notes", b"not data")
        first = files.snapshot()
        assert empty.names == () and first.names == ("batch-1",) and files.read("batch-1") == b"one"
        files.add("batch-1", b"one")
        assert DataFiles(place, "batch-*").snapshot() == first, "the same content once more"
        files.add("batch-1", b"two")
        assert files.snapshot().version not in (first.version, empty.version)
