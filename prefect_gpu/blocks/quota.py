"""The block that says what each owner of a pool is promised: guaranteed devices, limits, weights."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, field_validator, model_validator

from prefect_gpu.blocks.base import StrictBlock, refuse_unknown
from prefect_gpu.links import LOGO_OF_PROCESSES
from prefect_gpu.scheduling.model.shares import Share, Shares


class QuotaDefault(BaseModel):
    """What each owner is promised that the block does not name.

    Attributes:
        limit: Devices that it never exceeds; left out: no limit.
        weight: Its part of what is divided, beside the others'.
    """

    model_config = ConfigDict(extra="forbid")

    limit: int | None = Field(default=None, ge=0)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class QuotaShare(BaseModel):
    """What one owner, or one group of owners, is promised.

    Attributes:
        name: The owner's, as its runs say it; or the group's.
        group: The group that it belongs to; left out: the pool itself.
        guaranteed: Devices that it has as soon as it needs them. While it does not, they are lent.
        limit: Devices that it never exceeds; left out: no limit.
        weight: Its part of what is divided in its group, beside the others'.
    """

    name: str = Field(min_length=1)
    group: str | None = None
    guaranteed: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=0)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            refuse_unknown(values, set(cls.model_fields), f"share {values.get('name', '?')}")
        return values

    @field_validator("name", "group")
    @classmethod
    def _valid_name(cls, value: str | None) -> str | None:
        if value is not None and (value != value.strip() or "/" in value):
            raise ValueError(f"name={value!r}: a name has no / in it, and no space at its ends")
        return value or None


class GpuQuota(StrictBlock):
    """How the devices of a pool are divided among the owners of its runs.

    The worker is told of it by name: ``PREFECT_INTEGRATIONS_GPU_QUOTA=NAME``.

    Example:
        ```python
        from prefect_gpu.blocks import GpuQuota

        quota = GpuQuota.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "GPU Quota"
    _block_type_slug = "gpu-quota"
    _logo_url = HttpUrl(LOGO_OF_PROCESSES)
    _description = "How the devices of a GPU pool are divided: guarantees, limits and weights of owners and groups."

    half_life_hours: float = Field(
        default=24.0,
        gt=0,
        allow_inf_nan=False,
        description="After so many hours, what an owner has had counts half.",
    )
    shares: list[QuotaShare] = Field(
        default_factory=list, description="Groups and owners. Whoever is named as somebody's group is a group."
    )
    default: QuotaDefault = Field(
        default_factory=QuotaDefault, description="What each owner is promised that is not named."
    )

    @model_validator(mode="after")
    def _consistent(self) -> GpuQuota:
        by_name = {share.name: share for share in self.shares}
        names = [share.name for share in self.shares]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"shares: {twice[0]!r} is there twice: state each owner and group once")
        for share in self.shares:
            if share.group is not None and share.group not in by_name:
                raise ValueError(
                    f"group={share.group!r} of share {share.name!r} is not among the shares: add it, or leave it out"
                )
            if share.limit is not None and share.guaranteed > share.limit:
                raise ValueError(
                    f"guaranteed={share.guaranteed} of share {share.name!r} is above its limit={share.limit}: lower "
                    "the one or raise the other"
                )
            self._not_in_itself(share, by_name)
        for share in self.shares:
            members = [one for one in self.shares if one.group == share.name]
            promised = sum(one.guaranteed for one in members)
            if members and promised > share.guaranteed:
                raise ValueError(
                    f"guaranteed={share.guaranteed} of group {share.name!r} is below the {promised} that its members "
                    f"are guaranteed together: raise it to {promised} or lower theirs"
                )
        return self

    @staticmethod
    def _not_in_itself(share: QuotaShare, by_name: dict[str, QuotaShare]) -> None:
        seen, group = {share.name}, share.group
        while group is not None:
            if group in seen:
                raise ValueError(f"group={share.group!r} of share {share.name!r}: the group is in itself; leave it out")
            seen.add(group)
            group = by_name[group].group if group in by_name else None

    @property
    def guaranteed(self) -> int:
        """Devices that are guaranteed to anybody, all together."""
        return sum(share.guaranteed for share in self.shares if share.group is None)

    def as_shares(self) -> Shares:
        """The same for the scheduler.

        Example:
            >>> GpuQuota(shares=[QuotaShare(name="vision", guaranteed=4)]).as_shares().named[0].guaranteed
            4
        """
        return Shares(
            self.half_life_hours * 3600.0,
            tuple(
                Share(one.name, one.group or "", one.guaranteed, one.limit, one.weight)
                for one in sorted(self.shares, key=lambda one: one.name)
            ),
            Share("", limit=self.default.limit, weight=self.default.weight),
        )
