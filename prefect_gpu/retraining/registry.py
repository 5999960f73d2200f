"""A registry of models: versions that never change, and one of them, the champion, that is in use.

In a folder or below a prefix of S3::

    versions/0003.json     a version: its hash, what it was trained on, by which run, how good it was
    models/<random>/...    its files, as checkpoints are kept
    decisions/0005.json    what was decided: promoted, kept or rolled back; and who is the champion since

A version's files are there before its record is. The champion is whom the newest decision names: to write one small
record makes the switch, whole or not at all, and the older ones say how it came about. A decision says which one it
follows, so of two that are taken at the same time one comes first, and the other is taken anew.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from prefect_gpu.retraining.places import Place, find_place
from prefect_gpu.retraining.records import Records, RegistryError, open_records, plain
from prefect_gpu.retraining.versions import (
    Action,
    AlreadyRegistered,
    Decision,
    Superseded,
    Version,
    checked,
    digest,
    version_name,
)
from prefect_gpu.training.checkpoints import CheckpointError
from prefect_gpu.training.checkpoints.manifest import files_of

T = TypeVar("T")
Record = TypeVar("Record", "Version", "Decision")
_TRIES = 20  # each time another process was faster


class ModelRegistry:
    """The versions of one model.

    Args:
        place: A folder that all runs see, ``s3://bucket/prefix``, or ``block:checkpoint-storage/NAME/prefix``.
        existing: Whether it has had a champion before. An empty place is an error then: it is what is seen of a share
            that is not mounted, and the next model would become the champion of it.

    Raises:
        RegistryError: Nothing was ever decided there, although it is ``existing``.
        ValueError: ``place`` is none.

    Example:
        >>> registry = ModelRegistry("models/digits")                             # doctest: +SKIP
        >>> version = registry.register(Path("model.joblib"), data_version="a1")  # doctest: +SKIP
        >>> registry.promote(version, "The first one.", instead_of=None)          # doctest: +SKIP
        >>> registry.load(registry.champion(), joblib.load)                       # doctest: +SKIP
    """

    def __init__(self, place: str | Path, *, existing: bool = False) -> None:
        self.place: Place = find_place(place, "registry")
        self._existing = existing
        self._versions = open_records(self.place.below("versions"))
        self._decisions = open_records(self.place.below("decisions"))
        if existing:
            self._newest()

    # -- versions ---------------------------------------------------------------------------------------------------

    def register(self, model: str | Path, *, data_version: str, again: bool = False, **about: Any) -> Version:
        """Make a file, or a folder of files, a new version. It is copied, and is no champion yet.

        Args:
            data_version: Which data it was trained on.
            again: Whether there may be a version of these data already.
            about: Further attributes of :class:`Version`: ``metrics``, ``parameters``, ``code_version``, ``run``,
                ``run_url``.

        Raises:
            AlreadyRegistered: There is a version of these data. Nothing was registered.
            RegistryError: It could not be written.
            TypeError: What is said of it is of another kind. Nothing was registered.
            ValueError: ``data_version`` is empty, or ``model`` is a folder without files.
        """
        about = plain(checked({"data_version": data_version, **about}))  # before anything is copied
        data_version, model = about.pop("data_version"), Path(model)
        if not again and (found := self.of_data(data_version)):
            raise AlreadyRegistered(found)
        if model.is_dir() and not any(files_of(model)):  # a version is kept for good
            raise ValueError(f"model={str(model)!r} is a folder without files: register it once the model is in it.")
        place = f"models/{secrets.token_hex(8)}"
        store = self.place.below(place).store()
        hashes = []

        def copy(path: Path) -> None:
            """What was copied is what counts, should the model change meanwhile."""
            target = path.with_suffix(model.suffix)
            (shutil.copytree if model.is_dir() else shutil.copyfile)(model, target)
            hashes.append(digest(target))

        try:
            kept = store.save(copy, step=0)
        except (CheckpointError, OSError) as error:
            raise RegistryError(f"{model} could not be put into the registry {self.place}: {error}") from error
        facts: dict[str, Any] = {
            "sha256": hashes[-1],
            "size_bytes": kept.size_bytes,
            "place": place,
            "created_at": _now(),
        }
        # Decisions go by name: a version that was judged and deleted must not have its name given to another one.
        judged = [int(name[1]) for one in self.decisions() if (name := re.fullmatch(r"v(\d+)", one.version))]
        for _ in range(_TRIES):
            known = self.versions()
            if not again and (found := _of_data(known, data_version)):  # another process was faster
                store.remove()
                raise AlreadyRegistered(found)
            number = max([one.number for one in known] + judged, default=0) + 1
            version = Version(number=number, data_version=data_version, **facts, **about)
            if self._versions.add(number, asdict(version)):
                return version
        raise RegistryError(f"{_TRIES} others registered a model in {self.place} meanwhile: try again.")

    def versions(self) -> list[Version]:
        """All of them, from old to new."""
        return [_read(Version, self._versions, number) for number in self._versions.numbers()]

    def version(self, name: str | int) -> Version:
        """One of them, by its name or its number.

        Raises:
            RegistryError: There is none of this name.
        """
        numbers = self._versions.numbers()
        match = re.fullmatch(r"v?0*(\d+)", str(name).strip())
        if match is None or int(match[1]) not in numbers:
            known = ", ".join(map(version_name, numbers[-5:])) or "none yet"
            raise RegistryError(f"version={name!r} is not in the registry {self.place}. The newest there: {known}.")
        return _read(Version, self._versions, int(match[1]))

    def of_data(self, data_version: str) -> Version | None:
        """The newest version that was trained on these data."""
        return _of_data(self.versions(), data_version)

    def load(self, version: Version, load: Callable[[Path], T]) -> T:
        """A model, after its hash was compared with the one that it was registered with.

        Args:
            load: Called with the path of its file or folder, such as ``joblib.load``; what it returns is returned.
                The file is there as long as that takes.

        Raises:
            RegistryError: It is not what was registered, or out of reach.
            TypeError: It is no version; :meth:`version` gives that of a name.
        """
        _check(version=version)
        store = self.place.below(version.place).store()  # it holds the copy on this machine
        try:
            found = store.restore()
        except CheckpointError as error:
            raise RegistryError(f"{version.name} cannot be fetched: {error}") from error
        if found is None or digest(found.path) != version.sha256:
            raise RegistryError(
                f"{version.name} in {self.place} is not what was registered: bring {version.place} back from a backup, "
                "or roll back to another version."
            )
        return load(found.path)

    # -- decisions --------------------------------------------------------------------------------------------------

    def champion(self) -> Version | None:
        """The version in use, or None if none was promoted yet.

        Raises:
            RegistryError: Its record is gone.
        """
        newest = self._newest()
        if newest is None or not newest.champion:
            return None
        try:
            return self.version(newest.champion)
        except RegistryError as error:
            raise RegistryError(
                f"The champion cannot be read: {error} Bring its record back from a backup, or roll back to another "
                "version."
            ) from error

    def decisions(self) -> list[Decision]:
        """All of them, from old to new."""
        return [_read(Decision, self._decisions, number) for number in self._decisions.numbers()]

    def judgement(self, version: Version) -> Decision | None:
        """How a version was judged as a challenger; None: it was not yet."""
        judged = (one for one in reversed(self.decisions()) if one.action != "rolled back")
        return next((one for one in judged if one.version == version.name), None)

    def promote(self, version: Version, reason: str, *, instead_of: Version | None, **about: Any) -> Decision:
        """Make a version the champion, in one step.

        Args:
            instead_of: The champion that it was compared with.
            about: Further attributes of :class:`Decision`: ``facts``, ``run``, ``run_url``.

        Raises:
            Superseded: That is not the champion any more. Nothing was decided.
        """
        _check(version=version, instead_of=instead_of or version)
        return self._decide("promoted", version, version.name, reason, instead_of.name if instead_of else "", about)

    def keep(self, version: Version, reason: str, *, champion: Version, **about: Any) -> Decision:
        """Write down that a version was judged, and the champion stays. The arguments are as of :meth:`promote`.

        Raises:
            Superseded: That is not the champion any more. Nothing was decided.
        """
        _check(version=version, champion=champion)
        return self._decide("kept", version, champion.name, reason, champion.name, about)

    def roll_back(self, to: str | int | None = None, reason: str = "", **about: Any) -> Decision:
        """Make an earlier version the champion again.

        Args:
            to: Its name or number; None: the champion before this one. Twice in a row that goes back by two.
            reason: Why, for those who read it later.

        Raises:
            RegistryError: There is no such version, or no champion before this one.
        """
        decisions = self.decisions()
        line = _line_of_champions(decisions)
        current = line[-1] if line else ""  # its record may be gone, and is not needed
        if to is None and len(line) < 2:
            raise RegistryError(f"The registry {self.place} has no champion before this one: name a version.")
        target = self.version(line[-2] if to is None else to)
        if target.name == current:
            raise RegistryError(f"version={target.name!r} is the champion already: name another one.")
        self.load(target, Path.exists)  # whoever rolls back is in a hurry: what is damaged is found now
        return self._decide("rolled back", target, target.name, reason or "No reason was given.", current, about)

    def _decide(
        self, action: Action, version: Version, champion: str, reason: str, expected: str, about: Mapping[str, Any]
    ) -> Decision:
        if not isinstance(reason, str):  # it is kept for good, and each page of decisions has it
            raise TypeError(f"reason={reason!r} is not allowed: give a text.")
        for _ in range(_TRIES):
            newest = self._newest()
            if (newest.champion if newest else "") != expected:
                raise Superseded(
                    f"{newest.champion if newest else 'nobody'} is the champion by now, and not {expected or 'nobody'}."
                )
            number = newest.number + 1 if newest else 1
            decision = Decision(number, action, version.name, champion, reason, _now(), **plain(about))
            if self._decisions.add(number, asdict(decision)):
                return decision
        raise RegistryError(f"{_TRIES} others decided about {self.place} meanwhile: try again.")

    def _newest(self) -> Decision | None:
        numbers = self._decisions.numbers()
        if self._existing and not numbers:
            raise RegistryError(
                f"The registry {self.place} is empty, and is said to have had a champion (existing=True). Mount the "
                "share that it is on, or correct its place. Of a new one, leave out existing=True."
            )
        return _read(Decision, self._decisions, numbers[-1]) if numbers else None


def _check(**given: object) -> None:
    """Refuse what is no version, such as the name of one, which people see everywhere."""
    for argument, value in given.items():
        if not isinstance(value, Version):
            remedy = f"give registry.version({value!r})"
            if value is None:  # what registry.champion() returns before anybody was promoted
                remedy = "if it comes from registry.champion(), nobody is champion yet: registry.promote(...) one"
            raise TypeError(f"{argument}={value!r} is no Version: {remedy}.")


def _line_of_champions(decisions: list[Decision]) -> list[str]:
    """Who was champion before whom, without those that were rolled back from."""
    line: list[str] = []
    for decision in decisions:
        if decision.action == "rolled back" and decision.champion in line:
            del line[line.index(decision.champion) :]
        if decision.action != "kept" and line[-1:] != [decision.champion]:  # it may be promoted once more
            line.append(decision.champion)
    return line


def _read(kind: type[Record], records: Records, number: int) -> Record:
    """One record, of whatever version of prefect-gpu: what this one does not know is left out."""
    found = records.read(number)
    known = {one.name for one in fields(kind)}
    try:
        return kind(**{name: value for name, value in found.items() if name in known})
    except TypeError as error:
        raise RegistryError(f"Record {number} of the registry cannot be read: {error}.") from None


def _of_data(versions: list[Version], data_version: str) -> Version | None:
    return next((one for one in reversed(versions) if one.data_version == data_version), None)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
