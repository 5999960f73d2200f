"""Checkpoints in S3: the files first, then one small object that makes them a checkpoint.

Objects below the run's prefix::

    pool/<id>                       empty; its name says of which pool the run is
    data/<random>/checkpoint...     the files of one checkpoint
    commits/00000007.json           its manifest: step, size and SHA-256 of every file, and where they are
    best/...                        the same for the best checkpoint
    training-2/...                  the same for the second training of the run

A commit is written only if there is none of its number (``If-None-Match``), after all of its files: whoever is killed
while saving leaves files that nobody refers to, and the next save removes them. The previous checkpoint stays, so that
there is one to fall back on if the newest turns out damaged.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from prefect_gpu.training.checkpoints.location import S3Location
from prefect_gpu.training.checkpoints.manifest import (
    PAYLOAD,
    Checkpoint,
    CheckpointDamaged,
    CheckpointError,
    FileFacts,
    Holding,
    Manifest,
    SaveCallback,
    describe,
)
from prefect_gpu.training.checkpoints.renewed import own_session
from prefect_gpu.training.scratch import Scratch

logger = logging.getLogger("prefect_gpu.training")

PART_BYTES = 16 << 20  # of a file that is sent in parts; one is in memory at a time
_KEPT = 2
_COMMIT = re.compile(r"^commits/(\d{8})\.json$")
_MARK = re.compile(r"^(?:training-[\w-]+/)?pool/([^/]+)$")
_OURS = re.compile(
    r"^(training-[\w-]+/)?(best(-[\w-]+)?/)?"
    rf"(pool/[^/]+|commits/\d{{8}}\.json|data/[0-9a-f]{{16}}/{PAYLOAD}[^/]*(/.+)?)$",
    re.DOTALL,
)
# No commit may refer to what is gone, and whose the rest is must be known until the end.
_REMOVED_IN_ORDER = ("commits/", "data/", "best", "training-", "pool/")
TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
MISSING = ("NoSuchKey", "404", "NotFound")
_DENIED = "AccessDenied"
_TRIES = 5
_SILENT_S = 30.0  # after so long without a word of an answer, a request is sent again
_PATIENCE_S = 60.0  # after so long it is not sent a third time: the training waits meanwhile
_READ_BYTES = 1 << 20
_MOST_AT_ONCE = 1000  # objects that one request may remove


class _NoAnswer(BotoCoreError):  # type: ignore[misc]
    """A request was sent, again and again, for long enough."""

    fmt = "the server has not answered for {seconds:.0f} s"


class _Object(NamedTuple):
    """One that is stored: its key, the key relative to the run's prefix, and Unix seconds of its last change."""

    key: str
    name: str
    changed_at: float


class S3CheckpointStore:
    """The checkpoints of one run, in S3. A :class:`.Store`. One process at a time saves there.

    Credentials are those that the worker gives this run alone, else those of the environment, as boto3 finds them;
    unless others are given.

    Args:
        location: Belongs to this run alone.
        client: An S3 client; by default one for the location.
        pool: The id of the run's pool, written down with the first checkpoint; empty: it has none.
        credentials: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and perhaps ``AWS_SESSION_TOKEN``.

    Example:
        >>> store = S3CheckpointStore(S3Location("bucket", "runs/1"))            # doctest: +SKIP
        >>> store.save(lambda path: path.write_text("weights"), step=17)         # doctest: +SKIP
    """

    def __init__(
        self, location: S3Location, client: Any = None, *, credentials: Mapping[str, str] | None = None, pool: str = ""
    ) -> None:
        self.location = location
        self._client = client or s3_client(location, credentials or {})
        self._unmarked_pool = pool

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch("prefect-gpu-checkpoint-")

    def save(self, callback: SaveCallback, step: int, loss: float | None = None) -> Checkpoint:
        """See :meth:`.Store.save`. What is saved is written to this machine's disk first, and sent from there."""
        folder = self._scratch.empty()
        place = f"data/{secrets.token_hex(8)}"
        callback(folder / PAYLOAD)
        manifest = describe(folder, step, loss, place)
        with self._in_reach():
            if self._unmarked_pool:  # an empty object whose name says it, so that a list of names is all one needs
                self._client.put_object(Bucket=self.location.bucket, Key=self._key(f"pool/{self._unmarked_pool}"))
                self._unmarked_pool = ""
            for name, facts in manifest.files.items():
                self._send(folder / name, f"{place}/{name}", facts)
            commits = self._commit(manifest)
        try:
            with self._in_reach():
                self._remove_older(commits)
        except CheckpointError as error:
            logger.warning("This checkpoint is saved; older ones could not be removed, and are by the next: %s", error)
        return self._found(manifest, folder)

    def restore(self) -> Checkpoint | None:
        """See :meth:`.Store.restore`. It is fetched to this machine's disk."""
        with self._in_reach():
            for number in sorted(self._commits(), reverse=True):
                try:
                    return self._fetch(self._manifest(number))
                except CheckpointDamaged as error:
                    logger.warning(
                        "Checkpoint %d of %s is damaged and will not be used: %s", number, self.location, error
                    )
        return None

    def remove(self) -> None:
        """See :meth:`.Store.remove`."""
        with self._in_reach():
            left: list[str] = []
            for below in _REMOVED_IN_ORDER:
                ours = (found.key for found in self._keys(below) if _OURS.match(found.name))
                while some := list(islice(ours, _MOST_AT_ONCE)):
                    left += self._delete(some)
            self._abort_uploads("")
        if left:
            raise CheckpointError(f"{self.location}: the server keeps {len(left)} objects, such as {left[0]}.")

    def holding(self) -> Holding | None:
        """See :meth:`.Store.holding`."""
        changed_at, pool, marked_at = 0.0, "", 0.0
        with self._in_reach():
            for found in self._keys(""):
                if not _OURS.match(found.name):
                    return None
                changed_at = max(changed_at, found.changed_at)
                mark = _MARK.match(found.name)
                if mark and found.changed_at >= marked_at:
                    pool, marked_at = mark[1], found.changed_at
        return Holding(changed_at, pool) if changed_at else None

    def stores_below(self, named: Callable[[str], bool]) -> Iterator[tuple[str, S3CheckpointStore]]:
        """See :meth:`.Store.stores_below`."""
        base = self._key("")
        with self._in_reach():
            for page in self._pages(base, Delimiter="/"):
                for entry in page.get("CommonPrefixes") or ():
                    name = entry["Prefix"][len(base) : -1]
                    if named(name):
                        yield name, S3CheckpointStore(self.location.below(name), self._client)

    # -- saving -----------------------------------------------------------------------------------------------------

    def _send(self, file: Path, name: str, facts: FileFacts) -> None:
        """Send one file; the server compares every part with a checksum of ours."""
        target = {"Bucket": self.location.bucket, "Key": self._key(name)}
        with file.open("rb") as stream:
            if facts.bytes <= PART_BYTES:
                content = stream.read()
                self._client.put_object(**target, Body=content, ContentMD5=content_md5(content))
                return
            upload = self._client.create_multipart_upload(**target)["UploadId"]
            try:
                parts: list[dict[str, Any]] = []
                while content := stream.read(PART_BYTES):
                    number = len(parts) + 1
                    sent = self._client.upload_part(
                        **target, UploadId=upload, PartNumber=number, Body=content, ContentMD5=content_md5(content)
                    )
                    parts.append({"ETag": sent["ETag"], "PartNumber": number})
                self._client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts})
            except _NoAnswer:
                raise  # to end the upload would take as long again: the next save does it
            except BaseException:
                with contextlib.suppress(BotoCoreError, ClientError):
                    self._client.abort_multipart_upload(**target, UploadId=upload)
                raise

    def _commit(self, manifest: Manifest) -> list[int]:
        """Make it the current checkpoint. Returns all commits, the new one last."""
        content = manifest.to_json().encode()
        for _ in range(_TRIES):
            known = sorted(self._commits())
            number = known[-1] + 1 if known else 1
            try:
                self._client.put_object(
                    Bucket=self.location.bucket,
                    Key=self._key(f"commits/{number:08d}.json"),
                    Body=content,
                    ContentMD5=content_md5(content),
                    IfNoneMatch="*",
                )
            except ClientError as error:
                if error_code(error) not in TAKEN:
                    raise
                if not self._is(number, manifest):  # else it is ours, and the answer to a first try was lost
                    continue
            return [*known, number]
        raise CheckpointError(f"{self.location}: another process saves there, too. Each run needs a prefix of its own.")

    def _is(self, number: int, manifest: Manifest) -> bool:
        try:
            return self._manifest(number) == manifest
        except CheckpointDamaged:
            return False

    def _remove_older(self, commits: list[int]) -> None:
        """Keep the newest two; remove everything that they do not refer to."""
        kept = commits[-_KEPT:]
        try:
            places = {f"{self._manifest(number).place}/" for number in kept}
        except CheckpointDamaged:
            return  # what it referred to is not known: the next save removes it
        names = [f"commits/{number:08d}.json" for number in commits if number not in kept]
        self._delete([self._key(name) for name in names])  # first: no commit may refer to what is gone
        data = list(self._keys("data/"))
        self._delete([one.key for one in data if not any(one.name.startswith(place) for place in places)])
        self._abort_uploads("data/")

    def _abort_uploads(self, below: str) -> None:
        """End what a killed process has begun to send: its parts cost, and nobody sees them."""
        prefix = self._key(below)
        pages = self._client.get_paginator("list_multipart_uploads")
        try:
            answers = list(pages.paginate(Bucket=self.location.bucket, Prefix=prefix))
        except ClientError as error:
            if error_code(error) != _DENIED:
                raise
            return  # one who may see nothing but what is his: the worker ends them with the run
        for upload in (one for answer in answers for one in answer.get("Uploads") or ()):
            if upload["Key"].startswith(prefix) and _OURS.match(upload["Key"][len(self._key("")) :]):
                self._client.abort_multipart_upload(
                    Bucket=self.location.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )

    def _delete(self, keys: list[str]) -> list[str]:
        """Remove objects. Returns which of them stay, and why: an answer may be good, and say so of some."""
        stay: list[str] = []
        for start in range(0, len(keys), _MOST_AT_ONCE):
            some = [{"Key": key} for key in keys[start : start + _MOST_AT_ONCE]]
            try:
                answer = self._client.delete_objects(
                    Bucket=self.location.bucket, Delete={"Objects": some, "Quiet": True}
                )
            except ClientError as error:
                if error_code(error) != _DENIED:
                    raise
                for one in some:  # some servers want a right to the whole bucket for that request
                    self._client.delete_object(Bucket=self.location.bucket, **one)
                continue
            stay += (f"{one.get('Key')} ({one.get('Code')})" for one in answer.get("Errors") or ())
        return stay

    # -- restoring --------------------------------------------------------------------------------------------------

    def _commits(self) -> list[int]:
        matches = (_COMMIT.match(found.name) for found in self._keys("commits/"))
        return [int(match[1]) for match in matches if match]

    def _manifest(self, number: int) -> Manifest:
        with self._damaged_if_missing("its manifest"):
            return Manifest.from_json(b"".join(self._read(f"commits/{number:08d}.json")))

    def _fetch(self, manifest: Manifest) -> Checkpoint:
        folder = self._scratch.empty()
        for name in (*manifest.files, *manifest.folders):
            if not (folder / name).resolve().is_relative_to(folder.resolve()):
                raise CheckpointDamaged(f"{name} lies outside of the checkpoint")
        for name in manifest.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in manifest.files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._damaged_if_missing(name):
                manifest.check(name, _write(self._read(f"{manifest.place}/{name}"), target))
        payload = folder / manifest.payload
        if not payload.exists():
            if manifest.files:
                raise CheckpointDamaged(f"{manifest.payload} is missing")
            payload.mkdir()  # one without a file, saved by a version that did not write folders down
        return self._found(manifest, folder)

    def _read(self, name: str) -> Iterator[bytes]:
        """What an object holds. A connection that breaks off is followed by another one, which gets the rest."""
        key, got, in_vain = self._key(name), 0, 0
        while True:
            rest = {"Range": f"bytes={got}-"} if got else {}
            body = self._client.get_object(Bucket=self.location.bucket, Key=key, **rest)["Body"]
            begin = got
            try:
                while chunk := body.read(_READ_BYTES):
                    got += len(chunk)
                    yield chunk
                return
            except BotoCoreError:  # boto3 itself tries again only until an answer has begun
                in_vain = 0 if got > begin else in_vain + 1
                if in_vain == _TRIES:
                    raise

    @contextmanager
    def _damaged_if_missing(self, what: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            if error_code(error) in MISSING:
                raise CheckpointDamaged(f"{what} is missing") from error
            raise

    # -- both ---------------------------------------------------------------------------------------------------------

    def _keys(self, below: str) -> Iterator[_Object]:
        """All objects below a name."""
        base = self._key("")
        for page in self._pages(self._key(below)):
            for entry in page.get("Contents") or ():
                yield _Object(entry["Key"], entry["Key"][len(base) :], entry["LastModified"].timestamp())

    def _pages(self, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
        paginator = self._client.get_paginator("list_objects_v2")
        yield from paginator.paginate(Bucket=self.location.bucket, Prefix=prefix, **more)

    def _found(self, manifest: Manifest, folder: Path) -> Checkpoint:
        kept_at = f"s3://{self.location.bucket}/{self._key(manifest.place)}"
        return Checkpoint(manifest.step, folder / manifest.payload, manifest.size_bytes, manifest.loss, kept_at)

    def _key(self, name: str) -> str:
        return f"{self.location.prefix}/{name}" if self.location.prefix else name

    @contextmanager
    def _in_reach(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise CheckpointError(out_of_reach(f"The checkpoints at {self.location} are", error)) from error


_REMEDIES = {
    "NoSuchBucket": "Make the bucket first.",
    "AccessDenied": "These credentials may not read and write there.",
    "InvalidAccessKeyId": "AWS_ACCESS_KEY_ID is not known to the server.",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID.",
    "ExpiredToken": "AWS_SESSION_TOKEN has expired: give new credentials.",
}


def out_of_reach(what: str, error: BotoCoreError | ClientError) -> str:
    """An error of S3's as a sentence with its remedy.

    Args:
        what: What cannot be reached, with its verb: ``"The models at s3://bucket are"``.
    """
    return f"{what} out of reach: {error}. {remedy_of(error)}"


def remedy_of(error: BotoCoreError | ClientError) -> str:
    """What to do about an error of S3's."""
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a block that has them."
    code = error_code(error) if isinstance(error, ClientError) else ""
    return _REMEDIES.get(code, "Check that the server is up, and endpoint_url and region.")


def s3_client(location: S3Location, credentials: Mapping[str, str], *, of_run: bool = True, **options: Any) -> Any:
    """A client for a place.

    Args:
        credentials: ``AWS_...`` variables that count instead of the environment's.
        of_run: Whether credentials that the worker gave this run alone come before the environment's; they reach its
            own checkpoints and nothing else.
        options: Of botocore's ``Config``, instead of ours.
    """
    # Checksums of the newest kind are not known to every server that speaks S3; those that we send are.
    config = Config(
        retries={"mode": "standard", "max_attempts": _TRIES},
        read_timeout=_SILENT_S,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if location.endpoint_url else {},
    ).merge(Config(**options))
    # A session of its own: boto3's keeps the first credentials that it finds, for good.
    session = boto3.session.Session(
        botocore_session=own_session() if of_run and not credentials else None,
        aws_access_key_id=credentials.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=credentials.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=credentials.get("AWS_SESSION_TOKEN"),
    )
    client = session.client(
        "s3", endpoint_url=location.endpoint_url or None, region_name=location.region or None, config=config
    )
    client.meta.events.register("request-created.s3", _have_patience)
    return client


def _have_patience(request: Any, **_: Any) -> None:
    """Before each try of a request: botocore counts its tries, and each may take as long as the server is silent.

    One is always tried twice: a connection that was idle for long may have gone without a word.

    Raises:
        _NoAnswer: It has been tried for long enough.
    """
    begun, tries = request.context.get("prefect_gpu_tries") or (monotonic(), 0)
    request.context["prefect_gpu_tries"] = begun, tries + 1
    taken = monotonic() - begun
    if tries > 1 and taken > _PATIENCE_S:
        raise _NoAnswer(seconds=taken)


def _write(content: Iterable[bytes], target: Path) -> FileFacts:
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        for chunk in content:
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    return FileFacts(size, digest.hexdigest())


def content_md5(content: bytes) -> str:
    """What S3 compares with what it has received."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def error_code(error: ClientError) -> str:
    """S3's own name of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))
