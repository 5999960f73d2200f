"""The block that says where checkpoints are kept, with the credentials that runs need to reach them."""

from __future__ import annotations

from pydantic import Field, HttpUrl, SecretStr, model_validator

from prefect_gpu.blocks.base import StrictBlock, plain
from prefect_gpu.links import LOGO_OF_FILES
from prefect_gpu.training.checkpoints.location import S3Location, without_credentials


class CheckpointStorage(StrictBlock):
    """Where the checkpoints of a pool's runs are kept: a folder, or S3.

    The worker is told of it by name: ``PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=block:checkpoint-storage/NAME``. It gives
    the credentials to each run's environment, and nowhere else.

    Example:
        ```python
        from prefect_gpu.blocks import CheckpointStorage

        storage = CheckpointStorage.load("BLOCK_NAME")
        ```

        >>> CheckpointStorage(bucket="trainings", prefix="checkpoints", region="eu-central-1").location
        's3://trainings/checkpoints?region=eu-central-1'
    """

    _block_type_name = "Checkpoint Storage"
    _block_type_slug = "checkpoint-storage"
    _logo_url = HttpUrl(LOGO_OF_FILES)
    _description = "Where the checkpoints of a GPU pool's runs are kept: a folder that all nodes reach, or S3."

    folder: str | None = Field(
        default=None, description="A folder: on the worker's machine, or one that all nodes have at the same path."
    )
    bucket: str | None = Field(default=None, description="The S3 bucket. It must be there already.")
    prefix: str = Field(default="", description="Prefix of the names of all objects.")
    endpoint_url: str | None = Field(
        default=None, description="Address of an S3 server that is not Amazon's, such as https://s3.example:9000."
    )
    region: str | None = Field(default=None, description="The bucket's region.")
    access_key_id: SecretStr | None = Field(
        default=None, description="The access key's id; without it, each run looks for credentials where it runs."
    )
    secret_access_key: SecretStr | None = Field(default=None, description="The secret of the access key.")
    session_token: SecretStr | None = Field(default=None, description="The token of temporary credentials.")

    @model_validator(mode="after")
    def _one_place(self) -> CheckpointStorage:
        if bool(self.folder) == bool(self.bucket):
            bucket = self.bucket and without_credentials(self.bucket)
            raise ValueError(
                f"folder={self.folder!r} and bucket={bucket!r}: give either the path of a folder, or an S3 bucket"
            )
        if self.folder:
            of_s3 = ("prefix", "endpoint_url", "region", "access_key_id", "secret_access_key", "session_token")
            for name in of_s3:
                if getattr(self, name):
                    raise ValueError(f"{name} is set beside folder={self.folder!r}: it is only for a bucket")
        if bool(plain(self.access_key_id)) != bool(plain(self.secret_access_key)):
            given, lacking = ("access_key_id", "secret_access_key")[:: 1 if plain(self.access_key_id) else -1]
            raise ValueError(f"{given} is set and {lacking} is not: give both, or neither")
        if plain(self.session_token) and not plain(self.access_key_id):
            raise ValueError("session_token is set and access_key_id is not: a token belongs to an access key")
        if self.bucket and ("/" in self.bucket or ":" in self.bucket or "@" in self.bucket):
            shown = without_credentials(self.bucket)
            raise ValueError(f"bucket={shown!r}: give the bucket's name alone, and the rest as prefix")
        if self.endpoint_url and "@" in self.endpoint_url:
            raise ValueError("endpoint_url has an @ in it: credentials belong in access_key_id and secret_access_key")
        if self.endpoint_url and not self.endpoint_url.startswith(("http://", "https://")):
            raise ValueError(f"endpoint_url={self.endpoint_url!r}: it begins with http:// or https://")
        return self

    @property
    def location(self) -> str:
        """The address, as the setting ``checkpoints`` has it. It holds no credentials."""
        if self.folder:
            return self.folder
        place = S3Location(self.bucket or "", self.prefix.strip("/"), self.endpoint_url or "", self.region or "")
        return str(place)

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as boto3 reads them from a run's environment; empty if there are none. Secret."""
        found = {
            "AWS_ACCESS_KEY_ID": plain(self.access_key_id),
            "AWS_SECRET_ACCESS_KEY": plain(self.secret_access_key),
            "AWS_SESSION_TOKEN": plain(self.session_token),
        }
        return {name: value for name, value in found.items() if value}
