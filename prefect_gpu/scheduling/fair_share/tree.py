"""Groups and owners as a tree, whose root is the pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from prefect_gpu.scheduling.model.shares import Share, Shares
from prefect_gpu.units import plural

NOBODY = "(nobody)"
"""What runs are called that say no owner."""


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

    def limit_words(self, node: str) -> str:
        """What the limit of a node is, which has one, in words."""
        limit = self.share[node].limit
        assert limit is not None
        whose = f"{node[:-1]} itself" if node.endswith("/") and node[:-1] in self.share else node
        return f"the limit of {whose} is {plural(limit, 'device')}"

    def totals(self, by_owner: Mapping[str, float]) -> dict[str, float]:
        """By node: the sum of its owners' numbers."""
        found = dict.fromkeys(self.share, 0.0)
        for owner, number in by_owner.items():
            for node in self.path(owner):
                found[node] += number
        return found
