"""One call of ``sweep``: which trial gets the next free place in the pool."""

from __future__ import annotations

import pickle
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import httpx
import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState
from prefect.exceptions import ObjectNotFound

from prefect_gpu.decorators import GpuFlow
from prefect_gpu.prefect_client import one_client
from prefect_gpu.sweeps import runs
from prefect_gpu.sweeps.alone import SweepError
from prefect_gpu.sweeps.first_rung import steps_of, with_first_rung
from prefect_gpu.sweeps.outcomes import Outcomes, counts
from prefect_gpu.sweeps.proposals import Plan, Proposer
from prefect_gpu.sweeps.space import misfit_of
from prefect_gpu.sweeps.spoken import Spoken
from prefect_gpu.training.rungs import Reached, Rungs
from prefect_gpu.training.trial import NEEDED, TrialOf, reached_by, said_by

RUN = "flow_run"  # user attribute of a trial: its flow run
_LOOK_S = 0.5  # between two questions to Prefect
_REFUSED_S = 600.0  # for so long, a refusal may be a gateway's whose server is away; so long may a database be, too
_DELETED = "its flow run was deleted"
_PREFECT, _DATABASE, _FLOWS = "Prefect", "The study's database", "The place where the pool keeps flows"
_SEND_AGAIN_S = 10.0  # a try leaves a run in Prefect that has failed


class Search:
    """Starts, promotes and ends trials.

    Args:
        watched_in: The study's storage, if trainings are to talk to the study; None: they need not.
        rungs: Where trainings stop; None: the study's pruner decides. The first one may be to be found.
    """

    def __init__(
        self,
        train: GpuFlow[..., Any],
        study: optuna.Study,
        proposer: Proposer,
        *,
        fixed: Mapping[str, Any],
        objective: str,
        watched_in: str | None,
        rungs: Rungs | None,
    ) -> None:
        self._train, self._study, self._proposer = train, study, proposer
        self._fixed, self._objective, self._watched_in, self._rungs = fixed, objective, watched_in, rungs
        self._known_rungs = rungs  # with the first one, as soon as that is known
        self._training: dict[UUID, int] = {}  # by flow run, the trial
        self._stopped: dict[int, UUID] = {}  # trials at a rung, with their flow runs
        self._needed: dict[int, Mapping[str, float]] = {}  # by trial, what it was told last
        self._unstarted: tuple[Trial, dict[str, Any]] | None = None  # a trial that is begun, and has no run yet
        self._spoken = Spoken(study, objective)
        self._outcomes = Outcomes(study, objective, self._spoken, compared=watched_in is not None)
        self._watch = runs.Watch(lambda run_id: self._spoken.suspended(self._training[run_id]))
        self._away: set[str] = set()  # what is out of reach: Prefect, or the study's database
        self._refused_since: dict[str, float] = {}  # without anything else between
        self._has_started = False  # whether a trial's run, in this call
        self._half_begun = False  # whether the database failed as a trial was begun, which may be there even so

    def run(self, trials: int, parallel: int, timeout: float | None, check: Callable[[], None]) -> None:
        """Until so many trials are over, or the time is.

        Args:
            check: Called again and again; raises if another sweep has taken over.
        """
        with one_client():
            self._train = self._train.ready()
            self._run(trials, parallel, timeout, check)

    def _run(self, trials: int, parallel: int, timeout: float | None, check: Callable[[], None]) -> None:
        end = time.monotonic() + timeout if timeout is not None else float("inf")
        self._take_over()
        before = sum(map(counts, self._study.get_trials(deepcopy=False)))
        if before >= trials and not self._training:  # else the search goes on with those that train
            self._spoken.none_is_new(before, trials)
        while True:
            check()
            if self._training:
                self._reached(self._look, asks_study=False)
            more: bool | None = True
            while more and self._has_place(parallel) and time.monotonic() < end:
                more = self._reached(lambda: self._next(trials))
            if not self._training and more is not None:
                break
            time.sleep(_LOOK_S)
        if self._unstarted is not None:
            number, words = self._unstarted[0].number, "the time was over before Prefect could be told to start its run"
            self._insist(partial(self._outcomes.had_no_run, number, words))
        for number, run_id in self._stopped.items():
            try:
                runs.give_up(run_id, "The sweep has ended, and other trials were better at this rung.")
            except httpx.HTTPError as error:
                self._spoken.warn("Run %s stays suspended: Prefect could not be told to cancel it: %r", run_id, error)
            self._insist(partial(self._outcomes.end, number, state=TrialState.PRUNED))

    def _has_place(self, parallel: int) -> bool:
        """Whether another trial may train. One that is suspended by hand, or over, keeps no place from others."""
        return len(self._training.keys() - self._watch.suspended - self._outcomes.unread.keys()) < parallel

    def _reached(self, work: Callable[[], bool], *, asks_study: bool = True) -> bool | None:
        """Do what takes Prefect, the database and the pool's storage. None if one is out of reach: it is tried again.

        Args:
            asks_study: Whether it asks the database each time, so that it is there if this can be done.

        Raises:
            httpx.HTTPStatusError: Prefect has refused what it is asked for a long time.
            StorageInternalError: The database has been out of reach for a long time.
            NotSentError: The pool's storage has.
        """
        try:
            done = work()
        except (httpx.HTTPError, StorageInternalError, runs.NotSentError) as error:
            prefects = isinstance(error, httpx.HTTPError)
            who = _PREFECT if prefects else _FLOWS if isinstance(error, runs.NotSentError) else _DATABASE
            if who not in self._away:
                self._away.add(who)
                self._spoken.warn("%s is out of reach, and the sweep waits for it: %s", who, said_by(error))
            if prefects and not (isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500):
                self._refused_since.pop(who, None)  # it is away: after that, a gateway may refuse for a while
            elif time.monotonic() - self._refused_since.setdefault(who, time.monotonic()) > _REFUSED_S:
                raise
            return None
        if done:  # else Prefect was not asked
            self._there(_PREFECT)
        if asks_study:
            self._there(_DATABASE)
        return done

    def _there(self, who: str) -> None:
        self._away.discard(who)
        self._refused_since.pop(who, None)

    def _insist(self, work: Callable[[], object]) -> None:
        """Do it, as soon as what it takes is in reach."""

        def done() -> bool:
            work()
            return True

        while self._reached(done) is None:
            time.sleep(_LOOK_S)

    def _take_over(self) -> None:
        """What an earlier call has left: trials that train, or have stopped at a rung."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if run := trial.user_attrs.get(RUN):
                self._training[UUID(run)] = trial.number
            else:
                self._insist(partial(self._find, trial))

    def _find(self, trial: FrozenTrial) -> None:
        """The run of a trial whose sweep has ended before it could take it down: else it would train for nobody."""
        run_id = runs.begun(self._tag(trial))
        if run_id is None:
            self._outcomes.had_no_run(trial.number, "the sweep ended before it had started this trial's run")
        else:
            self._training[run_id] = trial.number
            Trial(self._study, trial._trial_id).set_user_attr(RUN, str(run_id))

    def _tag(self, trial: Trial | FrozenTrial) -> str:
        """Of its flow run. A study of the same name, made anew, has others."""
        return f"{self._study.study_name}-trial-{trial.number}-{trial.datetime_start:%y%m%d%H%M%S%f}"

    def _look(self) -> bool:
        """See which runs have ended or stopped."""
        for run_id, run in self._watch.over(self._training):
            number = self._training[run_id]
            if run is None:
                self._outcomes.failed(number, _DELETED)
            elif run.state is not None and run.state.is_paused():
                self._stopped[number] = run_id
            elif not self._outcomes.tell(number, run):
                continue
            del self._training[run_id]
            self._outcomes.unread.pop(run_id, None)
            self._spoken.at_rest(number)
        return True

    def _next(self, trials: int) -> bool:
        """Give a place in the pool to the promotion that is worth most, else to a new trial. False: there is none."""
        if self._unstarted is not None:
            self._start_run(*self._unstarted, again=True)
            return True
        if self._half_begun:
            self._give_up_half_begun()
        known = self._study.get_trials(deepcopy=False)  # once: the storage is asked for each trial that is not over
        has_more = not self._outcomes.exhausted or any(trial.state is TrialState.WAITING for trial in known)
        may_start = has_more and sum(map(counts, known)) < trials
        plan = None
        if self._rungs is not None:
            self._known_rungs = with_first_rung(self._rungs, self._study, known, self._spoken.first_rung)
            if may_start:  # when no new trial may start, the rungs say whose end is still of interest
                plan = self._proposer.plan(self._known_rungs, known, self._stopped, self._training.values())
        if plan is not None:
            for number, needed in plan.needed.items():
                self._goes_on_with(known[number]._trial_id, number, needed)
        if plan is not None:
            promoted, why = plan.promoted, "it promises most for its time"
        else:
            promoted, why = self._by_rungs(known), "it is among the best of its rung"
        if promoted is None and not may_start and not self._training:
            promoted, why = self._at_last(known), "it is the best of the highest rung, and no trial is complete"
        if promoted is not None:
            self._promote(known[promoted], plan, why)
        elif may_start:
            self._start(plan)
        else:
            return False
        return True

    def _by_rungs(self, known: Sequence[FrozenTrial]) -> int | None:
        """Whom the rungs alone would promote."""
        if self._known_rungs is None or not self._stopped:
            return None
        return self._known_rungs.judging(steps_of(known)).promotion(self._stopped, self._reached_by(known))

    def _at_last(self, known: Sequence[FrozenTrial]) -> int | None:
        """The trial that goes on if none is complete, so that the sweep has a result; None: one is.

        The rungs promote a part of the trials that came to them. Where few came, that part is none.
        """
        if self._known_rungs is None or any(trial.state is TrialState.COMPLETE for trial in known):
            return None
        return self._known_rungs.judging(steps_of(known)).furthest(self._stopped, self._reached_by(known))

    def _reached_by(self, known: Sequence[FrozenTrial]) -> Reached:
        return reached_by(known, maximize=self._study.direction is optuna.study.StudyDirection.MAXIMIZE)

    def _promote(self, trial: FrozenTrial, plan: Plan | None, why: str) -> None:
        run_id = self._stopped[trial.number]
        self._goes_on_with(trial._trial_id, trial.number, plan.own if plan is not None else {})
        try:
            runs.resume(run_id, f"Promoted: {why}.")
        except ObjectNotFound:
            del self._stopped[trial.number]
            self._outcomes.failed(trial.number, _DELETED)
            return
        del self._stopped[trial.number]
        self._training[run_id] = trial.number
        self._spoken.promoted(trial.number, why)

    def _start(self, plan: Plan | None) -> None:
        try:
            trial, parameters = self._proposer.next(plan.parameters if plan is not None else None)
            if plan is not None:
                self._goes_on_with(trial._trial_id, trial.number, plan.own)
        except StorageInternalError:
            self._half_begun = True
            raise
        self._unstarted = trial, parameters
        self._start_run(trial, parameters)

    def _give_up_half_begun(self) -> None:
        """A trial that was begun as the database failed has no run, and would be taken for one that trains."""
        ours = {*self._training.values(), *self._stopped}
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in ours:
                self._outcomes.had_no_run(trial.number, "the study's database was out of reach as it was begun")
        self._half_begun = False

    def _start_run(self, trial: Trial, parameters: Mapping[str, Any], *, again: bool = False) -> None:
        """Start a trial's run; ``again``: Prefect was out of reach before the answer came, and may have started it."""
        tag = self._tag(trial)
        run_id = runs.begun(tag) if again else None
        if run_id is None:
            asked = {**self._fixed, **parameters}
            try:
                run_id = runs.start(self._train, asked, self._about(trial), tag)
            except TypeError as error:  # before anything was sent
                self._refused(trial, asked, error)
                return
            except runs.NotSentError as error:
                if not self._has_started:  # it may have been wrong all the time
                    raise SweepError(
                        f"The flow cannot be put where the pool keeps flows: {error} See that this is there, with room."
                    ) from error
                time.sleep(_SEND_AGAIN_S)
                raise
            self._there(_FLOWS)
        self._unstarted, self._has_started = None, True
        self._training[run_id] = trial.number
        trial.set_user_attr(RUN, str(run_id))

    def _refused(self, trial: Trial, asked: Mapping[str, Any], error: TypeError) -> None:
        """A trial cannot be started with its parameters, which only a space that is a function shows so late.

        Raises:
            ValueError: It is the first one of this call: the space is wrong, rather than a branch of it.
        """
        misfit = misfit_of(self._train.fn, asked)
        words = f"space and fixed do not fit the parameters of the flow {self._train.name!r}: {misfit or error}"
        self._unstarted = None
        self._outcomes.failed(trial.number, words, counts=self._has_started)
        if not self._has_started:
            raise ValueError(words.rstrip(".") + ".") from error

    def _goes_on_with(self, trial_id: int, number: int, needed: Mapping[str, float]) -> None:
        """Have a trial find with which values it goes on at its next rungs; without any the rungs decide."""
        if needed != self._needed.get(number, {}):
            Trial(self._study, trial_id).set_user_attr(NEEDED, needed)
            self._needed[number] = needed

    def _about(self, trial: Trial) -> TrialOf | None:
        if self._watched_in is None:
            return None
        pruner = b64encode(pickle.dumps(self._study.pruner)).decode()
        name = self._study.study_name
        return TrialOf(
            self._watched_in, name, trial._trial_id, trial.number, self._objective, pruner, self._known_rungs
        )
