"""A trained network as a policy, on clusters of any size.

The network knows four nodes of eight GPUs. Any other cluster is seen as windows of four nodes of one domain, and a job
is never put on nodes of two windows. Nodes and GPUs that a window lacks look as if harmless jobs were on them; those
beyond eight of a node are not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prefect_gpu.papers.deepshare.network import LEVELS, Network, Starts
from prefect_gpu.papers.deepshare.view import View
from prefect_gpu.scheduling.interference.sensitivity import Candidate, Key, Running, Start


class TrainedPolicy:
    """Lets a trained network decide: a policy for :class:`ContentionAware`.

    It gives one start at a time and is asked again until it gives none. The network is asked about one candidate after
    the other, fewer GPUs first, as in training (:class:`.StartsEnv`). Where nobody runs, the
    first one is started wherever the network thinks best, so that a cluster never stands still.

    Args:
        starts: What the network chooses among.
        network: The network.
    """

    def __init__(self, starts: Starts, network: Network) -> None:
        self._starts = starts
        self._network = network
        self._widths = frozenset(len(nodes) for nodes in starts.encoding.sets)

    def knows(self, candidate: Candidate) -> bool:
        """Whether the network can choose to start a job in this way."""
        gpus, nodes = candidate.key.gpus, candidate.key.nodes
        return nodes in self._widths and gpus % nodes == 0 and gpus // nodes <= self._starts.each

    def __call__(self, view: View) -> Sequence[Start]:
        """The next start, or none."""
        encoding, starts = self._starts.encoding, self._starts
        ways: dict[int, set[int]] = {}
        keys: dict[int, Key] = {}
        for candidate in filter(self.knows, view.candidates):
            ways.setdefault(candidate.job, set()).add(candidate.key.nodes)
            keys.setdefault(candidate.job, candidate.key)
        jobs = list(keys)
        chosen = [jobs[at] for at in encoding.choose((keys[job].model, keys[job].gpus) for job in jobs)]
        step = encoding.nodes
        windows = [numbers[at : at + step] for numbers in view.domains for at in range(0, len(numbers), step)]
        rooms = [[view.free[n] for n in window] + [0] * (encoding.nodes - len(window)) for window in windows]
        masks = {
            job: np.stack([starts.mask(room, {keys[job].gpus: frozenset(ways[job])})[:-1] for room in rooms])
            for job in chosen
        }
        for at, asked in enumerate(chosen):
            if not masks[asked].any():
                continue
            left = chosen[at:]
            wanted = [
                [(keys[job].model, keys[job].gpus) for job in left if masks[job][window].any()]
                for window in range(len(windows))
            ]
            scores = self._network.scores(self._states(view, windows, wanted))
            # Windows are compared by how much a start is better there than nothing.
            gains = np.where(masks[asked], scores[:, :-1] - scores[:, -1:], -np.inf)
            window, answer = np.unravel_index(int(gains.argmax()), gains.shape)
            if gains[window, answer] > 0 or not view.running:
                gpus, places = starts.meaning(int(answer))
                nodes = frozenset(windows[window][place] for place in places)
                return [Start(asked, Key(keys[asked].model, gpus, len(nodes)), nodes)]
        return []

    def _states(
        self, view: View, windows: Sequence[Sequence[int]], wanted: Sequence[Sequence[tuple[str, int]]]
    ) -> np.ndarray:
        encoding = self._starts.encoding
        place = {number: (at, row) for at, window in enumerate(windows) for row, number in enumerate(window)}
        inside: list[list[Running]] = [[] for _ in windows]
        for job in view.running:
            rows: dict[int, set[int]] = {}
            for number in job.nodes:
                at, row = place[number]
                rows.setdefault(at, set()).add(row)
            for at, those in rows.items():
                inside[at].append(Running(job.key, frozenset(those)))
        states = np.stack([encoding.observe(*one) for one in zip(inside, wanted, strict=True)])
        for at, window in enumerate(windows):
            for row in range(encoding.nodes):
                size = view.sizes[window[row]] if row < len(window) else 0
                states[at, row, size : encoding.gpus_per_node] = 1 / LEVELS
        return states
