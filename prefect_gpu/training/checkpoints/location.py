"""A store's address: a folder's path, or ``s3://bucket/prefix?endpoint_url=...&region=...``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

_OPTIONS = ("endpoint_url", "region")


@dataclass(frozen=True)
class S3Location:
    """Where in S3.

    Attributes:
        prefix: Without a slash at its ends.
        endpoint_url: Of a server that is not Amazon's; empty: Amazon's.
        region: Empty: what the environment says.
    """

    bucket: str
    prefix: str
    endpoint_url: str = ""
    region: str = ""

    def below(self, name: str) -> S3Location:
        """A part of it."""
        return S3Location(self.bucket, f"{self.prefix}/{name}".strip("/"), self.endpoint_url, self.region)

    def __str__(self) -> str:
        options = {name: getattr(self, name) for name in _OPTIONS if getattr(self, name)}
        return f"s3://{self.bucket}/{quote(self.prefix)}" + (f"?{urlencode(options)}" if options else "")


def parse_location(text: str) -> S3Location | Path:
    """Read a store's address.

    Raises:
        ValueError: It is none. The message says what is wrong.
    """
    if not text.strip():
        raise ValueError(f"checkpoints={text!r} is no place: give the path of a folder, or s3://bucket/prefix")
    parts = urlsplit(text)
    if parts.scheme in ("", "file"):
        return Path(parts.path if parts.scheme else text)
    if parts.scheme != "s3":
        raise ValueError(
            f"checkpoints={without_credentials(text)!r}: {parts.scheme}:// is not known; give a folder, or "
            "s3://bucket/prefix"
        )
    if not parts.netloc or "@" in parts.netloc:
        raise ValueError(
            f"checkpoints={without_credentials(text)!r}: the form is s3://bucket/prefix. Credentials do not belong "
            "here: give them as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in a block."
        )
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := sorted(set(options) - set(_OPTIONS)):
        place = text.partition("?")[0]  # what is no option may be a secret's
        raise ValueError(f"checkpoints={place!r}: {unknown[0]} is not known; there are {' and '.join(_OPTIONS)}")
    return S3Location(parts.netloc, unquote(parts.path).strip("/"), **options)


def without_credentials(text: str) -> str:
    """An address as an error shows it: without what stands before an @.

    Example:
        >>> without_credentials("s3://me:secret@bucket/prefix")
        's3://***@bucket/prefix'
    """
    return re.sub(r"^([a-z0-9+.-]*://)?.*@", r"\1***@", text, flags=re.DOTALL | re.IGNORECASE)


def part_of(location: str, name: str) -> str:
    """The address of a part of a store, such as the best checkpoints beside the newest."""
    place = parse_location(location)
    return str(place.below(name) if isinstance(place, S3Location) else place / name)
