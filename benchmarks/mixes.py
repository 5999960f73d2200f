"""DeepShare's four mixes in our own world: its hybrid and ``adaptive`` against correct LAS and SRTF.

    python -m benchmarks.mixes [--profile deepshare-hybrid] [--sets 10] [--spread] [--traces DIR] [--json] [--quick]

Job sets of 256 jobs wait at 0 for 4 nodes of 8 GPUs, one hour each if alone, up to 32 GPUs (powers of two), in the
mixes of Ryu & Eo (2023). All policies face the same sets and world. A figure is the mean of the sets. Everything is
asked in two settings: *spread*, every job of several GPUs on two or four nodes as in the paper, where nobody can avoid
the network (LAS and SRTF: on two if it fits there); and *anywhere*, where LAS and SRTF use best fit. The first is the
one that tells something of contention, and the only one with ``--spread``. Also measured: the least p90 that any policy
could reach. DIR holds DeepShare's folder jobs (github.com/gajagajago/deepshare), to take contention as its authors
measured it; without it, it is predicted from the paper's Table I. Quick: one set of each mix, spread.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, astuple
from pathlib import Path
from statistics import fmean

from benchmarks._claims import Claim, at_least, at_most, below, command_line, report
from benchmarks._least_p90 import least_p90_s
from prefect_gpu.papers.deepshare.contended import JOBS, MIXES
from prefect_gpu.papers.deepshare.mixes import BUSY, SIZES, Figures, Truth, draw, least_p90_jct_s, run
from prefect_gpu.simulation.traces import read_contention

# The paper's improvements (§VI), in percent: mean and 90th percentile of the completion times.
ASKED = {"las": (-18.2, -20.7), "srtf": (-15.4, -16.4)}
ADAPTIVE = "adaptive"
MOST_DECISION_S = 0.05
_SAME = 1e-6  # parts of the GPUs: the rounding of sums


class Measured:
    """Figures by mix and profile: means over the job sets."""

    def __init__(self, truth: Truth, jobs: int, sets: int, *, spread: bool) -> None:
        self._truth, self._jobs, self._sets, self._spread = truth, jobs, sets, spread
        self.found: dict[str, dict[str, Figures]] = {}
        self.setting = "spread" if spread else "anywhere"

    def of(self, mix: str, profile: str) -> Figures:
        """Each is simulated once."""
        by_profile = self.found.setdefault(mix, {})
        if profile not in by_profile:
            print(f"  {mix} {profile}{', spread' if self._spread else ''} ...", file=sys.stderr, flush=True)
            found = [self._run(mix, profile, seed) for seed in range(self._sets)]
            by_profile[profile] = Figures(*(fmean(values) for values in zip(*map(astuple, found), strict=True)))
        return by_profile[profile]

    def least_p90_s(self, mix: str) -> list[float]:
        """What no policy can be below, for each set: see :mod:`benchmarks._least_p90` and :func:`least_p90_jct_s`."""
        bound = least_p90_s if self._spread and not self._truth.measured else least_p90_jct_s
        return [bound(draw(seed, self._jobs, mix)) for seed in range(self._sets)]

    def _run(self, mix: str, profile: str, seed: int) -> Figures:
        chosen = self._truth.profile(profile, spread=self._spread)
        return run(draw(seed, self._jobs, mix), chosen, self._truth)


def claims_of(measured: Measured, mix: str, profile: str) -> list[Claim]:
    """What is asked in one mix."""
    ours, adaptive = measured.of(mix, profile), measured.of(mix, ADAPTIVE)
    claims = []
    for name, (mean, p90) in ASKED.items():
        theirs = measured.of(mix, name)
        against = f"{measured.setting}, {mix}: {profile} against {name}"
        claims += [
            at_most(f"{against}, mean JCT, percent", _change(ours.jct_s, theirs.jct_s), mean),
            at_most(f"{against}, p90 JCT, percent", _change(ours.p90_jct_s, theirs.p90_jct_s), p90),
            at_least(f"{against}, GPUs in use, difference", ours.used - theirs.used, -_SAME),
            below(
                f"{measured.setting}, {mix}: {ADAPTIVE} against {name}, mean JCT, percent",
                _change(adaptive.jct_s, theirs.jct_s),
                0,
            ),
        ]
    for name, figures in ((profile, ours), (ADAPTIVE, adaptive)):
        what = f"{measured.setting}, {mix}: {name}, a decision with 128 to 256 jobs waiting, p99, processor s"
        claims.append(below(what, figures.decision_p99_s, MOST_DECISION_S))
    return claims


def _change(ours: float, theirs: float) -> float:
    return 100 * (ours / theirs - 1)


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="one set of each mix, spread only")
    parser.add_argument("--profile", default="deepshare-hybrid", help="what is claimed of (default: deepshare-hybrid)")
    parser.add_argument("--sets", type=int, default=10, help="job sets of each mix (default: 10)")
    parser.add_argument("--spread", action="store_true", help="only with every job of several GPUs on 2 or 4 nodes")
    parser.add_argument("--traces", type=Path, help="DeepShare's repository, or a folder that holds its folder jobs")
    options = parser.parse_args()
    if options.sets < 1:
        parser.error(f"--sets {options.sets}: give 1 or more")
    truth = Truth(read_contention(_tables(options.traces)) if options.traces else None)
    sets = 1 if options.quick else options.sets
    settings = [
        Measured(truth, JOBS, sets, spread=spread)
        for spread in ((True,) if options.quick or options.spread else (True, False))
    ]
    claims = [claim for one in settings for mix in MIXES for claim in claims_of(one, mix, options.profile)]
    if not options.quick:  # not claimed of: the rule alone, in two ways
        for one in settings:
            for mix in MIXES:
                for name in ("deepshare", BUSY):
                    one.of(mix, name)
    details = {
        "setting": {"jobs": JOBS, "sets": sets, "gpus": SIZES, "measured": truth.measured},
        "least_possible_p90_jct_s": {
            one.setting: {mix: round(fmean(one.least_p90_s(mix))) for mix in MIXES} for one in settings
        },
        **{one.setting: _plain(one) for one in settings},
    }
    return report("mixes", claims, details, as_json=options.json)


def _plain(measured: Measured) -> dict[str, dict[str, dict[str, float]]]:
    return {
        mix: {
            profile: {key: round(value, 4) for key, value in asdict(figures).items()}
            for profile, figures in by_profile.items()
        }
        for mix, by_profile in measured.found.items()
    }


def _tables(folder: Path) -> Path:
    found = sorted(folder.rglob("shared_thp_ratio.csv")) if folder.is_dir() else []
    if len(found) != 1:
        raise SystemExit(f"{folder} holds {len(found)} files shared_thp_ratio.csv: give a folder that holds one")
    return found[0].parent


if __name__ == "__main__":
    sys.exit(main())
