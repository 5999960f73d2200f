"""The least 90th percentile of completion times that any policy could reach in the spread mixes: a linear programme.

Every job of several GPUs is on two or four nodes, and on each node it is slowed down by the worst of those beside it.
What a node may hold at a time are compositions: so many GPUs of each model. How long does it take at least until nine
tenths of the jobs are done, if each node may hold any composition for any time, jobs may be cut into pieces, and each
piece is slowed down only by what is on its own node? No policy is better than that. Jobs are chosen as it suits best;
stops and starts are free. Valid where ratios depend on the models alone and speeds not on the nodes, so for predicted
contention.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import bmat, csr_matrix

from prefect_gpu.papers.deepshare.mixes import GPUS_PER_NODE, NODES, Truth
from prefect_gpu.papers.deepshare.traffic import TRAFFIC
from prefect_gpu.simulation.model import JobModel

_WIDTHS = (2, 4)
_MODELS = tuple(TRAFFIC)
_PIECES = [(model, gpus) for model in range(len(_MODELS)) for gpus in (1, 2, 4, 8)]  # what a job may have on a node


def least_p90_s(jobs: Iterable[JobModel]) -> float:
    """The bound for one job set, with contention predicted from the traffic of the models.

    Raises:
        RuntimeError: The programme could not be solved.
        ValueError: Jobs of one model and size are not equally long.
    """
    listed = list(jobs)
    classes = Counter(map(_class, listed))
    work_s = {_class(job): job.service_s * job.request.gpus for job in listed}
    if any(job.service_s * job.request.gpus != work_s[_class(job)] for job in listed):
        raise ValueError("jobs of one model and size must be equally long: their classes are told apart by these alone")
    rates = _rates()
    kinds: list[tuple[int, int] | None] = [*_PIECES, None]  # the last one: single GPUs, which nobody slows down
    links = [(kinds.index(piece), at) for at, one in enumerate(classes) for piece in _pieces(one)]
    done, counts = len(links), len(classes)
    supplied = csr_matrix((np.ones(done), ([piece for piece, _ in links], range(done))), (len(kinds), done))
    needed = csr_matrix((-np.ones(done), ([at for _, at in links], range(done))), (counts, done))
    work = csr_matrix(np.diag([work_s[one] for one in classes]))
    share = csr_matrix(-np.ones((1, counts)))
    # Node seconds of each composition, GPU seconds of work by piece and class, and jobs of each class that are done.
    solved: Any = linprog(
        np.concatenate([np.full(len(rates), 1 / NODES), np.zeros(done + counts)]),
        A_ub=bmat([[csr_matrix(-rates.T), supplied, None], [None, needed, work], [None, None, share]]).tocsr(),
        b_ub=np.concatenate([np.zeros(len(kinds) + counts), [-math.ceil(0.9 * len(listed))]]),
        bounds=[(0, None)] * (len(rates) + done) + [(0, classes[one]) for one in classes],
        method="highs",
    )
    if not solved.success:
        raise RuntimeError(f"the linear programme could not be solved: {solved.message}")
    return float(solved.fun)


def _class(job: JobModel) -> tuple[int, int] | None:
    """Model and GPUs; of one GPU it does not matter whose."""
    return (_MODELS.index(job.kind), job.request.gpus) if job.request.gpus > 1 else None


def _pieces(one: tuple[int, int] | None) -> list[tuple[int, int] | None]:
    """What a job of this class may have on a node."""
    if one is None:
        return [None]
    model, gpus = one
    each = [gpus // width for width in _WIDTHS if gpus % width == 0]
    return [(model, size) for size in each if size <= GPUS_PER_NODE]


@cache
def _rates() -> np.ndarray:
    """Work that is done in each composition, in GPUs at full speed, by piece; GPUs that are left go to single ones."""
    table = Truth().table()
    ratios = [[table.of_models(own, other) for other in _MODELS] for own in _MODELS]
    rows = []
    for composition in _compositions(0, GPUS_PER_NODE):
        row = np.zeros(len(_PIECES) + 1)
        models = [_PIECES[piece][0] for piece in composition]
        for at, piece in enumerate(composition):
            others = (ratios[models[at]][model] for place, model in enumerate(models) if place != at)
            row[piece] += _PIECES[piece][1] * min(others, default=1.0)
        row[-1] = GPUS_PER_NODE - sum(_PIECES[piece][1] for piece in composition)
        rows.append(row)
    return np.array(rows)


def _compositions(first: int, room: int) -> Iterator[Sequence[int]]:
    """All ways to put pieces, from the first one on, onto so many GPUs of a node."""
    yield ()
    for piece in range(first, len(_PIECES)):
        if _PIECES[piece][1] <= room:
            for rest in _compositions(piece, room - _PIECES[piece][1]):
                yield (piece, *rest)
