"""Groups and owners as a tree, whose root is the pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import floor

from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.model.shares import Share, Shares
from prefect_gpu.units import plural

NOBODY = "(nobody)"
"""What runs are called that say no owner."""

_EVEN = 1e-6  # devices: sums of parts are not exact


class Tree:
    """The shares of a pool, with a leaf for each owner that there is.

    An owner that is named like a group is a member of that group, with the default share.

    Args:
        owners: Those who are about; all others that are named are there, too.

    Attributes:
        leaf: By owner: its node.
        children: By group, and for the pool (None): its nodes, by name.
        share: By node.
    """

    def __init__(self, shares: Shares, owners: Iterable[str]) -> None:
        self.share: dict[str, Share] = {share.name: share for share in shares.named}
        self._parent = {name: share.parent or None for name, share in self.share.items()}
        groups = {share.parent for share in shares.named if share.parent}
        self.leaf: dict[str, str] = {name: name for name in self.share if name not in groups}
        for owner in sorted(owners):
            if owner not in self.leaf:
                node = f"{owner}/" if owner in groups else owner or NOBODY
                self.leaf[owner] = node
                self.share[node] = replace(shares.default, name=node, parent=owner if owner in groups else "")
                self._parent[node] = owner if owner in groups else None
        self.children: dict[str | None, list[str]] = {None: []}
        for node in sorted(self.share):
            self.children.setdefault(self._parent[node], []).append(node)

    def path(self, owner: str) -> Iterator[str]:
        """The nodes from an owner's leaf up to the one below the pool."""
        node: str | None = self.leaf[owner]
        while node is not None:
            yield node
            node = self._parent[node]

    def never_within(self, owner: str, devices: int) -> str:
        """Why an owner's limits, its own or a group's, are below so many devices, in words; empty: they are not."""
        for node in self.path(owner):
            limit = self.share[node].limit
            if limit is not None and devices > limit:
                return f"{self.limit_words(node)}, and this run needs {devices}"
        return ""

    def never(self, request: Request, there_are: int, *, stops: bool) -> bool:
        """Whether limits, or what is guaranteed to others, keep a job from starting as long as they stay as they are.

        A job with a deadline starts when it must, whatever is guaranteed to others.

        Args:
            there_are: Devices of the pool.
            stops: Whether the outside world can stop jobs.
        """
        owner, devices = request.owner, request.total_gpus
        lent = (stops and request.preemptible) or request.deadline_at is not None
        return bool(self.never_within(owner, devices) or (not lent and self.never_beside(owner, devices, there_are)))

    def never_beside(self, owner: str, devices: int, there_are: int) -> str:
        """Why guarantees of others never leave so many devices to a job that may not be stopped; empty: they do."""
        if not 0 < devices <= there_are or self.keeps_guarantees({}, owner, devices, there_are):
            return ""
        others = min(there_are, self._sure({owner: devices}) - devices)
        return (
            f"{others:g} of the pool's {plural(there_are, 'device')} {'is' if others == 1 else 'are'} guaranteed to "
            f"others, and lent only to runs that may be stopped, and this run needs {devices}: with preemptible=True "
            "it could start"
        )

    def keeps_guarantees(self, had: Mapping[str, float], owner: str, devices: float, there_are: int) -> bool:
        """Whether guarantees can still be kept if an owner has so many devices more for as long as it likes.

        If more is guaranteed than there is, as while a node is away, each is sure of the same part of that, in whole
        devices. Who comes first has what is left over, if that is guaranteed to it.

        Args:
            had: By owner: devices that it has for as long as it likes.
            there_are: Devices of the pool.

        Example:
            >>> from prefect_gpu.scheduling.model.shares import Shares
            >>> tree = Tree(Shares(3600.0, (Share("ada", guaranteed=2), Share("bob", guaranteed=2))), ("eve",))
            >>> tree.keeps_guarantees({}, "eve", 1, 5), tree.keeps_guarantees({}, "eve", 1, 3)
            (True, False)
            >>> tree.keeps_guarantees({"ada": 1}, "ada", 1, 3), tree.keeps_guarantees({"ada": 1}, "ada", 1, 2)
            (True, False)
        """
        then = {**had, owner: had.get(owner, 0.0) + devices}
        before, after = self._sure(had), self._sure(then)
        if after <= there_are + _EVEN:
            return True
        if after > before + _EVEN:  # more than is guaranteed to it
            return False
        promised = sum(self.share[node].guaranteed for node in self.children[None])
        left = max(0.0, there_are - (before - promised))  # by those who have more than is guaranteed to them
        return self._sure(then, min(1.0, left / promised)) <= there_are + _EVEN

    def _sure(self, had: Mapping[str, float], part: float = 1.0) -> float:
        """Devices that owners have, and those that are guaranteed beyond these: of them, so large a part."""
        kept = {self.leaf[name]: number for name, number in had.items()}

        def sure(node: str) -> float:
            below = kept.get(node, 0.0) + sum(map(sure, self.children.get(node, [])))
            return max(below, floor(self.share[node].guaranteed * part + _EVEN))

        return float(sum(map(sure, self.children[None])))

    def limit_words(self, node: str) -> str:
        """What the limit of a node is, which has one, in words."""
        limit = self.share[node].limit
        assert limit is not None
        return f"the limit of {self.called(node)} is {plural(limit, 'device')}"

    def called(self, node: str) -> str:
        """What a node is called: the leaf of an owner that is named like a group is told apart from that."""
        group = node.removesuffix("/")
        return f"{group} itself" if group != node and group in self.share else node

    def totals(self, by_owner: Mapping[str, float]) -> dict[str, float]:
        """By node: the sum of its owners' numbers."""
        found = dict.fromkeys(self.share, 0.0)
        for owner, number in by_owner.items():
            for node in self.path(owner):
                found[node] += number
        return found
