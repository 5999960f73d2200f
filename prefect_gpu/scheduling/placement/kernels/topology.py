"""Where the nodes are, what a message between two of them costs, and how good a plan is (Liquid, §5.1 and §5.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from prefect_gpu.scheduling.placement.kernels.containers import Floats, Free, Gang, Ints, Plan, per_node


class Topology:
    """The nodes of a cluster by network domain and rack, and what each has in all.

    A rack's number counts within its domain: rack 0 of domain 0 is not rack 0 of domain 1.

    Attributes:
        domains: Each node's network domain, renumbered from 0, shape (nodes,); no gang straddles two.
        racks: Each node's rack, renumbered from 0 over all domains, shape (nodes,).
        gpus_total: GPUs of each node, free or not, shape (nodes,).
        cpus_total: Cores likewise; 0 where cores are not counted.
        rack_nodes: Nodes in the rack of each node, shape (nodes,).
        domain_nodes: Nodes in the domain of each node, shape (nodes,).

    Raises:
        ValueError: There is no node, shapes differ, or something is negative.
    """

    def __init__(
        self,
        domains: Sequence[int] | Ints,
        racks: Sequence[int] | Ints,
        gpus_total: Sequence[int] | Ints,
        cpus_total: Sequence[int] | Ints | None = None,
    ) -> None:
        self.gpus_total = per_node("gpus_total", gpus_total, None)
        count = len(self.gpus_total)
        if not count:
            raise ValueError("gpus_total is empty: a topology has at least one node")
        given_domains = per_node("domains", domains, count)
        given_racks = per_node("racks", racks, count)
        self.cpus_total = per_node("cpus_total", cpus_total, count)
        self.domains = _numbered(np.stack((given_domains,), axis=1))
        self.racks = _numbered(np.stack((given_domains, given_racks), axis=1))
        self.domain_nodes: Ints = np.bincount(self.domains)[self.domains]
        self.rack_nodes: Ints = np.bincount(self.racks)[self.racks]
        for array in vars(self).values():
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.gpus_total)

    def cost(self, one: int, other: int) -> float:
        """Cost between two nodes (eq. 2): 0, or how many nodes share the network between them; inf across domains."""
        if one == other:
            return 0.0
        if self.racks[one] == self.racks[other]:
            return float(self.rack_nodes[one])
        if self.domains[one] == self.domains[other]:
            return float(self.domain_nodes[one])
        return float("inf")

    def costs_from(self, node: int) -> Floats:
        """`cost` between a node and every node, shape (nodes,)."""
        costs = np.where(self.domains == self.domains[node], float(self.domain_nodes[node]), np.inf)
        costs[self.racks == self.racks[node]] = self.rack_nodes[node]
        costs[node] = 0.0
        return costs

    def network_cost(self, gang: Gang, plan: Plan, *, normalised: bool = True) -> float:
        """Cost of a plan: the sum of `cost` over the pairs that communicate.

        A gang with parameter servers and workers communicates between every server and every worker; one with only
        one of the two (all-reduce) between all its containers.

        Equation 5, which normalises it, is lost in the paper's print. Read here, as its Table 1 suggests: the sum is
        divided by the number of pairs, so it is the mean cost of a pair.

        Returns:
            In nodes (see `cost`); 0 without pairs; inf if the plan straddles domains.
        """
        servers = Counter(node for container, node in zip(gang, plan, strict=True) if container.role == "ps")
        workers = Counter(node for container, node in zip(gang, plan, strict=True) if container.role != "ps")
        pairs = 0
        total = 0.0
        if servers and workers:
            for one, many in servers.items():
                for other, more in workers.items():
                    pairs += many * more
                    total += many * more * self.cost(one, other)
        else:
            alike = list((servers or workers).items())
            for number, (one, many) in enumerate(alike):
                pairs += many * (many - 1) // 2
                for other, more in alike[number + 1 :]:
                    pairs += many * more
                    total += many * more * self.cost(one, other)
        return total / pairs if normalised and pairs else total

    def score(self, gang: Gang, plan: Plan, free: Free, network_weight: float) -> float:
        """Score of a plan (eqs. 3, 4 and 6); smaller is better.

        Args:
            free: What is free before the gang is placed.
            network_weight: The paper's lambda, from 0 (only full nodes count) to 1 (only the network counts).

        Returns:
            lambda x network cost + (1 - lambda) x the sum, over the plan's nodes, of -(asked + used) / total GPUs. A
            node without GPUs counts as full: nothing of it can be left over.
        """
        check_network_weight(network_weight)
        asked: Counter[int] = Counter()
        for container, node in zip(gang, plan, strict=True):
            asked[node] += container.gpus
        used = {node: int(self.gpus_total[node] - free.gpus[node]) for node in asked}
        load = -sum(self.filled(node, gpus + used[node]) for node, gpus in asked.items())
        return weighted(network_weight, self.network_cost(gang, plan), load)

    def filled(self, node: int, gpus: int) -> float:
        """The share of a node's GPUs that so many are; 1 if it has none."""
        total = int(self.gpus_total[node])
        return gpus / total if total else 1.0


def weighted(network_weight: float, cost: float, load: float) -> float:
    """lambda x cost + (1 - lambda) x load, where an infinite cost times 0 is still infinite."""
    return cost if cost == float("inf") else network_weight * cost + (1.0 - network_weight) * load


def check_network_weight(value: float) -> None:
    """Raise a ValueError unless lambda is from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"network_weight is {value}: give a number from 0 (fullness only) to 1 (network only)")


def _numbered(keys: Ints) -> Ints:
    """Numbers from 0 for the distinct rows of keys, in sorted order."""
    numbers: Ints = np.unique(keys, axis=0, return_inverse=True)[1].reshape(len(keys)).astype(np.int64)
    return numbers
