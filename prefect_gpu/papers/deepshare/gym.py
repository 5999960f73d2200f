"""DeepShare's training environment (§IV): rounds on a simulated cluster, for gymnasium.

It needs the extra ``rl``. Import this module, make an environment, and train what you like on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from prefect_gpu.papers.deepshare.contended import draw, predicted_table
from prefect_gpu.papers.deepshare.network import Starts
from prefect_gpu.papers.deepshare.observation import Encoding, Observation, profiles
from prefect_gpu.papers.deepshare.reward import BRANCHES, reward
from prefect_gpu.papers.deepshare.world_in_rounds import GPUS_PER_NODE, NODES, ROUND_S, RoundCluster, RoundJob
from prefect_gpu.scheduling.interference.sensitivity import (
    LEAST_RATIO,
    Key,
    Running,
    SensitivityTable,
)
from prefect_gpu.simulation.traces import ContentionTable, TraceJob

EPISODE_JOBS = 256
MOST_ROUNDS = 4096

Action = npt.NDArray[np.int64]


class ContentionEnv(gymnasium.Env[Observation, Action]):
    """One episode is a job set, one step a round.

    A step starts the candidates on the nodes that the action names (in the order of the candidates, each if it still
    fits), stops jobs whose throughput ratio has fallen to ``stop_at``, and lets a round pass. The reward is
    −W1·CS + W2·Util of that round. An episode ends when all jobs have ended.

    Observation and action are those of :class:`~prefect_gpu.papers.deepshare.observation.Encoding`; the number of
    each candidate is its own dimension of a ``MultiDiscrete`` space. ``info`` has ``action_mask``, bool of shape
    (candidates, answers), and :meth:`action_masks` gives it flat, as maskable algorithms want it.

    Args:
        jobs: Makes the job set of an episode from a random generator; None draws 256 jobs of the paper's normal mix.
        table: Speeds and ratios; None predicts them from the traffic of the paper's models.
        branch: Branch of the reward: A (W1 = 0.3) to E (0.7).
        nodes: Number of nodes.
        gpus_per_node: GPUs of each.
        candidates: The paper's K.
        round_s: Seconds of a round.
        stop_at: Jobs of this ratio or less go back to the queue; None: nobody is stopped.
        most_rounds: An episode is cut off after so many rounds.
        flaw: See :class:`~prefect_gpu.papers.deepshare.world_in_rounds.RoundCluster`.

    Raises:
        ValueError: The branch is not known, or a number is out of its range.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  (as gymnasium declares it)

    def __init__(
        self,
        jobs: Callable[[np.random.Generator], Sequence[TraceJob]] | None = None,
        table: ContentionTable | None = None,
        *,
        branch: str = "B",
        nodes: int = NODES,
        gpus_per_node: int = GPUS_PER_NODE,
        candidates: int = 3,
        round_s: float = ROUND_S,
        stop_at: float | None = 0.6,
        most_rounds: int = MOST_ROUNDS,
        flaw: bool = False,
    ) -> None:
        if branch not in BRANCHES:
            raise ValueError(f"branch={branch!r} is not known: choose one of {', '.join(BRANCHES)}.")
        self._draw = jobs or (lambda generator: draw(int(generator.integers(2**31)), EPISODE_JOBS))
        self._table = predicted_table(nodes) if table is None else table
        self._w1 = BRANCHES[branch]
        self._round_s, self._stop_at, self._most_rounds, self._flaw = round_s, stop_at, most_rounds, flaw
        sensitivity = SensitivityTable(self._table.ratios)
        models = {spread.model for spread in self._table.isolated}
        self.encoding = Encoding(nodes, gpus_per_node, profiles(models, sensitivity), candidates)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, self.encoding.shape, np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete([len(self.encoding.sets) + 1] * candidates)
        self.cluster = self._cluster(())
        self._queue: list[RoundJob] = []
        self._candidates: list[RoundJob] = []
        self._ends: list[float] = []
        self._known_mask = np.zeros((), dtype=np.bool_)

    def _cluster(self, jobs: Sequence[TraceJob]) -> RoundCluster:
        encoding = self.encoding
        return RoundCluster(
            jobs, self._table, encoding.nodes, encoding.gpus_per_node, round_s=self._round_s, flaw=self._flaw
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with a fresh job set; the same seed gives the same one."""
        super().reset(seed=seed)
        self.cluster = self._cluster(self._draw(self.np_random))
        self._queue = list(self.cluster.jobs)
        self._ends = []
        return self._look(), self._info()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One round: (state, reward, whether all jobs have ended, whether it was cut off, info)."""
        cluster, encoding = self.cluster, self.encoding
        for job, answer in zip(self._candidates, action, strict=False):
            if answer != encoding.nothing and self._can_start(job, encoding.sets[answer]):
                self._queue.remove(job)
                cluster.start(job, encoding.sets[answer])
        if self._stop_at is not None:
            for job in list(cluster.running):
                if cluster.ratio(job) <= self._stop_at:
                    cluster.stop(job)
                    self._queue.append(job)
        running = list(cluster.running)
        ended, _ = cluster.advance()
        self._ends += [job.end_s for job in ended if job.end_s is not None]
        worth = reward([job.ratio for job in running], [cluster.used[-1]], self._w1)
        over = len(self._ends) == len(cluster.jobs)
        cut = not over and len(cluster.used) >= self._most_rounds
        return self._look(), worth, over, cut, self._info()

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which answers can be carried out, one candidate after the other: bool of shape (candidates × answers,)."""
        return self._known_mask.reshape(-1)

    def _can_start(self, job: RoundJob, nodes: frozenset[int]) -> bool:
        known = Key(job.model, job.gpus, len(nodes)) in self._table.isolated
        return known and self.cluster.fits(job.gpus, nodes)

    def _choose(self) -> list[RoundJob]:
        """The jobs that are asked about now."""
        return [self._queue[at] for at in self.encoding.choose((job.model, job.gpus) for job in self._queue)]

    def _look(self) -> Observation:
        self._candidates = self._choose()
        running = [Running(job.key, job.nodes) for job in self.cluster.running]
        return self.encoding.observe(running, [(job.model, job.gpus) for job in self._candidates])

    def _mask(self) -> npt.NDArray[np.bool_]:
        encoding = self.encoding
        mask = encoding.mask(self.cluster.free, [job.gpus for job in self._candidates])
        for row, job in enumerate(self._candidates):
            for at, nodes in enumerate(encoding.sets):
                if Key(job.model, job.gpus, len(nodes)) not in self._table.isolated:
                    mask[row, at] = False
        return mask

    def _info(self) -> dict[str, Any]:
        """``action_mask``, and of the episode so far: jobs ended, seconds, mean completion in seconds, ratio, use."""
        cluster, ends = self.cluster, self._ends
        self._known_mask = self._mask()
        return {
            "action_mask": self._known_mask,
            "ended": len(ends),
            "now_s": cluster.now,
            "rounds": len(cluster.used),
            "mean_completion_s": sum(ends) / len(ends) if ends else 0.0,
            "ratio": cluster.mean_ratio,
            "used": cluster.mean_used,
        }


class StartsEnv(ContentionEnv):
    """The same world, one start a step: what a policy is trained on.

    A round's action is a sequence of answers (see :class:`~prefect_gpu.papers.deepshare.network.Starts`), each about
    one candidate. First the one with the fewest GPUs is asked about, of those that fit; *nothing* goes on to the next
    one, and after the last one lets the round pass. After each start it begins anew: a candidate that has started makes
    room in the state for the next one of the queue. So no start can make another impossible. The state has those
    candidates alone that fit and have not been answered. Where nobody runs, nothing is not an answer.

    The rewards of a round's steps sum up to the round's reward: a start brings the change that it makes in it, and
    the last step brings the rest.

    Who is slowed down too much is found out by running: jobs whose ratio was ``stop_at`` or less in a round go to the
    end of the queue after it, one after another, as long as they would still be slowed down as much.

    Args:
        options: As for :class:`ContentionEnv`.
    """

    def __init__(
        self,
        jobs: Callable[[np.random.Generator], Sequence[TraceJob]] | None = None,
        table: ContentionTable | None = None,
        *,
        stop_at: float | None = LEAST_RATIO,
        w1: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(jobs, table, stop_at=None, **options)
        self._slowest = stop_at
        if w1 is not None:
            self._w1 = w1
        self.starts = Starts(self.encoding)
        self.action_space = gymnasium.spaces.Discrete(self.starts.nothing + 1)  # type: ignore[assignment]
        self._paid = 0.0
        self._answered = 0  # GPUs up to which candidates have been answered with nothing
        self._widths: dict[tuple[str, int], frozenset[int]] = {}
        for spread in self._table.isolated:
            known = self._widths.get(spread[:2], frozenset())
            self._widths[spread[:2]] = known | {spread.nodes}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with a fresh job set; the same seed gives the same one."""
        self._paid, self._answered = 0.0, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One start, or none for this candidate: (state, reward, all jobs ended, cut off, info)."""
        answer = int(action)
        if answer == self.starts.nothing and len(self._candidates) > 1:
            self._answered = self._candidates[0].gpus
            return self._look(), 0.0, False, False, self._info()
        if answer == self.starts.nothing:
            self._answered = 0
            state, worth, over, cut, info = super().step(self._nothing)
            worth, self._paid = worth - self._paid, 0.0
            if self._stop_the_slowed():
                state, info = self._look(), self._info()
            return state, worth, over, cut, info
        if self._known_mask[answer]:
            gpus, nodes = self.starts.meaning(answer)
            job = next(one for one in self._candidates if one.gpus == gpus)
            before, self._answered = self._worth(), 0
            self._queue.remove(job)
            self.cluster.start(job, nodes)
            worth = self._worth() - before
            self._paid += worth
        else:
            worth = 0.0  # only who ignores the mask comes here
        return self._look(), worth, False, False, self._info()

    def _stop_the_slowed(self) -> bool:
        """Whether anybody was stopped."""
        stopped = False
        if self._slowest is None:
            return stopped
        for job in list(self.cluster.running):
            if job.ratio <= self._slowest and self.cluster.ratio(job) <= self._slowest:
                self.cluster.stop(job)
                self._queue.append(job)
                stopped = True
        return stopped

    @property
    def _nothing(self) -> Action:
        return np.full(self.encoding.candidates, self.encoding.nothing)

    def _worth(self) -> float:
        """The reward of a round that would pass now."""
        cluster = self.cluster
        used = 1 - sum(cluster.free) / cluster.gpus
        return reward([cluster.ratio(job) for job in cluster.running], [used], self._w1)

    def _choose(self) -> list[RoundJob]:
        left = [job for job in super()._choose() if job.gpus > self._answered]
        return [job for job in left if self._starts_of(job)[:-1].any()]

    def _mask(self) -> npt.NDArray[np.bool_]:
        mask = self._starts_of(*self._candidates[:1])
        if not self.cluster.running and mask[:-1].any():
            mask[-1] = False
        return mask

    def _starts_of(self, *jobs: RoundJob) -> npt.NDArray[np.bool_]:
        return self.starts.mask(self.cluster.free, {job.gpus: self._widths[job.model, job.gpus] for job in jobs})
