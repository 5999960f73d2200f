"""Whatever happens, in whatever order: the books balance, nothing is lost, and nothing runs twice.

Random clusters, jobs and events, late, repeated and impossible ones among them, against a model that believes only the
instructions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefect_gpu.scheduling import Scheduler, record
from prefect_gpu.scheduling.interference.sensitivity import Key, Traffic
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import Instruction, Launch
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.state.asked import AskedType
from tests.support import examples

PATIENCE_S = 20.0
JOBS = [f"job-{number}" for number in range(10)]
QUEUES = ["q", "r", "unknown"]

job_ids = st.sampled_from(JOBS)
sizes = st.integers(1, 10)
statuses = st.sampled_from(list(Status))
kinds = st.sampled_from(["", "a", "b"])
placed = st.builds(Key, kinds, st.integers(1, 8), st.integers(1, 4))
requests = st.builds(
    Request,
    gpus=st.sampled_from([1, 1, 1, 1, 2, 2, 3, 0]),
    gpu_memory_bytes=st.none() | st.integers(1, 5) | sizes,
    cpus=st.none() | st.integers(1, 6),
    exclusive=st.sampled_from([False, False, True]),
    kind=kinds,
    automatic=st.sampled_from([False, False, True]),
)
limits = st.sampled_from([None, None, None, 1, 2, 3, 4])
queues = st.builds(
    Queue,
    id=st.sampled_from(QUEUES),
    name=st.just("name"),
    priority=st.integers(1, 3),
    paused=st.sampled_from([False, False, False, True]),
    limit=limits,
    active_elsewhere=st.integers(0, 2),
)
quotas = st.builds(
    Quotas,
    queues=st.lists(queues, max_size=2, unique_by=lambda queue: queue.id).map(tuple),
    pool_paused=st.sampled_from([False, False, False, True]),
    pool_limit=limits,
    pool_active_elsewhere=st.integers(0, 2),
    worker_limit=limits,
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    """Up to three nodes of up to three devices, whose sizes vary."""
    nodes = []
    for name in draw(st.sampled_from(["n", "nm", "mn", "mno", "o", ""])):
        devices = tuple(
            Device(f"{name}{number}", "test", size, cores=tuple(draw(st.sets(st.integers(0, 5), max_size=2))))
            for number, size in enumerate(draw(st.lists(sizes, max_size=3).filter(bool) | st.just([])))
        )
        end = draw(st.sampled_from([None, None, None, 30.0, 150.0, 1000.0]))
        nodes.append(Node(name, devices, tuple(range(draw(st.integers(0, 6)))), ends_at=end))
    return tuple(nodes)


@st.composite
def adoptions(draw: st.DrawFn) -> ev.JobAdopted:
    """A job found on devices that may be gone, taken, or too small: whatever an earlier worker saw."""
    request = draw(requests)
    name = draw(st.sampled_from("mnop"))
    devices = tuple(f"{name}{number}" for number in range(request.gpus))
    memory = request.gpu_memory_bytes if request.shareable else draw(sizes)
    cpus = tuple(draw(st.sets(st.integers(0, 9), max_size=4)))
    place = Placement(name, devices, cpus, memory or 0, request.shareable)
    queue, behind = draw(st.sampled_from(QUEUES)), draw(st.none() | job_ids)
    return ev.JobAdopted(draw(job_ids), request, queue, 0.0, place, draw(statuses), behind=behind)


types = st.builds(AskedType, st.integers(-1, 3), st.integers(-1, 9), st.booleans())
moments = st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0])
fractions = st.floats(0, 1)
estimates = st.builds(
    Estimate,
    service_s=st.none() | moments,
    saving_s=st.sampled_from([0.0, 1.0]),
    utilisation=st.none() | fractions,
    memory_bytes=st.none() | sizes,
    throughput=st.sampled_from([(), (1.0, 1.5)]),
)
owned = st.lists(st.tuples(st.sampled_from(["ada", "bob"]), moments), max_size=2).map(tuple)
single_events: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(ev.NodesChanged, clusters()),
    st.builds(ev.QuotasChanged, quotas),
    st.builds(ev.JobSubmitted, job_ids, requests, st.sampled_from(QUEUES), moments, moments, st.text(max_size=3)),
    st.builds(ev.JobWithdrawn, job_ids, st.text(max_size=3)),
    st.builds(ev.LeaveAsked, job_ids, st.text(max_size=3)),
    adoptions(),
    st.builds(ev.LaunchFailed, job_ids, st.text(max_size=3), moments),
    st.builds(ev.PlacingFailed, job_ids, st.text(max_size=3), moments),
    st.builds(ev.PhaseEntered, job_ids, statuses),
    st.builds(ev.JobEnded, job_ids, st.text(max_size=3)),
    st.just(ev.DrainRequested()),
    st.just(ev.TimePassed()),
    st.builds(ev.JobEstimated, job_ids, estimates),
    st.builds(ev.JobStopped, job_ids),
    st.builds(ev.Progressed, st.lists(st.tuples(job_ids, moments), max_size=2).map(tuple)),
    st.builds(ev.LossReported, job_ids, fractions),
    st.builds(ev.UtilisationMeasured, job_ids, fractions),
    st.builds(ev.SpeedMeasured, job_ids, st.floats(0, 4)),
    st.builds(ev.MemoryExhausted, job_ids),
    st.builds(ev.SlowdownMeasured, job_ids, st.floats(1, 4), kinds),
    st.builds(ev.SlowdownMeasured, job_ids, st.floats(1, 4), kinds, st.tuples(placed, placed)),
    st.builds(
        ev.ContentionLearned,
        st.lists(st.tuples(placed, placed, st.floats(0, 4)), max_size=3).map(tuple),
        st.lists(st.tuples(kinds, st.builds(Traffic, st.floats(0, 1e10), st.floats(0, 20))), max_size=2).map(tuple),
    ),
    st.builds(ev.CompanyLearned, st.lists(st.tuples(kinds, kinds, st.floats(0, 4)), max_size=3).map(tuple)),
    st.builds(ev.RequestsLearned, st.lists(st.tuples(types, st.integers(-1, 99)), max_size=3).map(tuple)),
    st.builds(ev.PressureMeasured, st.sampled_from("nmop"), fractions),
    st.builds(ev.WasteNoticed, job_ids, st.text(max_size=3), st.none() | sizes),
    st.builds(ev.WasteEnded, job_ids),
    st.builds(ev.UsageLearned, owned, owned),
    st.builds(
        ev.PromisesLearned, st.lists(st.tuples(moments, moments, st.none() | st.booleans()), max_size=2).map(tuple)
    ),
)

events = single_events | st.lists(single_events, max_size=3).map(lambda several: ev.Together(tuple(several)))

late = st.one_of(
    st.builds(ev.JobEnded, job_ids, st.just("ended")),
    st.builds(ev.LaunchFailed, job_ids, st.just("failed"), moments),
    st.builds(ev.PhaseEntered, job_ids, statuses),
)


class AnyHistory(RuleBasedStateMachine):
    """The scheduler against a model of the outside world, which knows only what it sent and what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(Profile("test", patience_s=PATIENCE_S))
        self.now = 0.0
        self.known: set[str] = set()  # submitted or adopted, and neither withdrawn nor ended
        self.running: dict[str, tuple[Placement, Request, str]] = {}
        self.submitted: dict[str, tuple[Request, str]] = {}
        self.devices: dict[str, tuple[str, int]] = {}  # id: node and memory, as of now
        self.quotas = Quotas()
        self.draining = False
        self.due: dict[str, float] = {}
        self.retry: dict[str, float] = {}
        self.opened: set[str] = set()  # that run, and waste their devices, or did

    @initialize(nodes=clusters().filter(lambda nodes: any(node.devices and node.ends_at is None for node in nodes)))
    def begin(self, nodes: tuple[Node, ...]) -> None:
        self.send(ev.NodesChanged(nodes))

    def send(self, event: ev.Event) -> None:
        self.believe(event)
        said = self.scheduler.handle(event, self.now)
        self.widen(event)
        self.open_and_close()
        for one in said:
            if isinstance(one, Launch):
                self.launch(one)
                self.check_that_nobody_impatient_was_overtaken(one)

    def believe(self, event: ev.Event) -> None:
        """What the event means to somebody who only follows launches."""
        match event:
            case ev.Together(several):
                for one in several:
                    self.believe(one)
            case ev.NodesChanged(nodes):
                self.devices = {device.id: (node.id, device.memory_bytes) for node in nodes for device in node.devices}
            case ev.QuotasChanged(new):
                self.quotas = new
            case ev.JobSubmitted(job, request, queue) if job not in self.running:
                self.known.add(job)
                self.submitted[job] = (request, queue)
                self.due[job] = event.not_before
            case ev.JobWithdrawn(job) if job not in self.running:
                self.known.discard(job)
                self.retry.pop(job, None)
            case ev.JobAdopted(job, request, queue, _, placement) if job not in self.running:
                self.known.add(job)
                self.running[job] = (placement, request, queue)
                self.submitted[job] = (request, queue)
                self.due[job] = 0.0
                self.retry.pop(job, None)
            case ev.LaunchFailed(job, _, not_before) if job in self.running:
                if self.scheduler.state.jobs[job].status not in (Status.TRAINING, Status.SAVING):
                    del self.running[job]
                    self.retry[job] = not_before
            case ev.PlacingFailed(job, _, not_before) if job in self.known - self.running.keys():
                self.retry[job] = not_before
            case ev.JobStopped(job) if job in self.running:
                del self.running[job]
            case ev.JobEnded(job) if job in self.running:
                del self.running[job]
                self.known.discard(job)
                self.retry.pop(job, None)
            case ev.DrainRequested():
                self.draining = True

    def widen(self, event: ev.Event) -> None:
        """A run that ran out of memory has its devices for itself, as far as the books go."""
        for one in event.events if isinstance(event, ev.Together) else (event,):
            if isinstance(one, ev.MemoryExhausted) and one.job in self.running:
                place, request, queue = self.running[one.job]
                if request.shareable:
                    known = self.scheduler.state._devices
                    sizes = [known[device].memory_bytes for device in place.devices if device in known]
                    whole = min(sizes, default=place.memory_bytes)
                    alone = replace(place, memory_bytes=whole, shared=False)
                    self.running[one.job] = (alone, replace(request, exclusive=True), queue)

    def open_and_close(self) -> None:
        """How much a run that wastes its devices keeps of them is the scheduler's word; which they are is not."""
        state = self.scheduler.state
        self.opened &= state.running.keys()
        self.opened |= {job.id for job in state.running.values() if job.opened}
        for job in map(state.running.__getitem__, self.opened & self.running.keys()):
            place, _, queue = self.running[job.id]
            assert job.placement is not None
            kept = replace(place, memory_bytes=job.placement.memory_bytes, shared=job.placement.shared)
            self.running[job.id] = (kept, job.request, queue)

    def launch(self, launch: Launch) -> None:
        job, place = launch.job, launch.placement
        assert job in self.known and job not in self.running, "launched twice, or never submitted"
        assert max(self.due[job], self.retry.get(job, 0.0)) <= self.now, "too early"
        request, queue = self.submitted[job]
        self.check_limits(queue)
        assert len(set(place.devices)) == len(place.devices) == request.gpus, "all the devices, or none"
        for device in place.devices:
            assert device in self.devices and self.devices[device][0] == place.node, "devices of one node"
            size = self.devices[device][1]
            assert size >= (request.gpu_memory_bytes or 0)
            company = [other for other in self.running.values() if device in other[0].devices]
            assert all(other.shareable for _, other, _ in company) and (request.shareable or not company), "alone"
            assert sum(other.memory_bytes for other, _, _ in company) + place.memory_bytes <= size, "beyond its memory"
        self.running[job] = (place, request, queue)

    def check_that_nobody_impatient_was_overtaken(self, launch: Launch) -> None:
        """A job that lost patience was looked at first, found no place, and kept what it could use."""
        state = self.scheduler.state
        key = self.rank(state.jobs[launch.job])
        for job in state.waiting():
            ahead = self.rank(job) < key
            waits_for_room = job.due_at <= self.now and state.limit_on(job.queue) is None
            came = max(job.not_before, job.gave_way_at)  # once it has stopped, it waits anew
            if ahead and waits_for_room and came + PATIENCE_S <= self.now:
                usable = self.scheduler.state.capability.usable(job.request)
                assert not usable & set(launch.placement.devices), f"{launch.job} overtook {job.id}"

    def rank(self, job: Job) -> tuple[object, ...]:
        """Where the job stands among all: the priority of its queue counts before everything else."""
        state = self.scheduler.state
        return (state.queue(job.queue).priority, *self.scheduler.profile.order.key(job, state, self.now))

    def check_limits(self, queue_id: str) -> None:
        """That one more run of this queue is allowed."""
        assert not self.draining and not self.quotas.pool_paused
        count = len(self.running)
        assert self.quotas.worker_limit is None or count < self.quotas.worker_limit
        assert self.quotas.pool_limit is None or count + self.quotas.pool_active_elsewhere < self.quotas.pool_limit
        in_queue = sum(1 for _, _, queue in self.running.values() if queue == queue_id)
        for queue in self.quotas.queues:
            if queue.id == queue_id:
                assert not queue.paused
                assert queue.limit is None or in_queue + queue.active_elsewhere < queue.limit

    # Ordinary life is more likely than confusion; confusion comes with `anything`.

    @rule(
        jobs=st.lists(st.tuples(job_ids, requests, st.sampled_from(QUEUES)), min_size=1, max_size=5),
        ahead=st.sampled_from([0, 0, 0, 5, -30]),
    )
    def submit(self, jobs: list[tuple[str, Request, str]], ahead: float) -> None:
        for job, request, queue in jobs:
            self.send(ev.JobSubmitted(job, request, queue, self.now, self.now + ahead))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            self.send(ev.JobEnded(data.draw(st.sampled_from(sorted(self.running))), "ended"))

    @rule(data=st.data(), pause=st.sampled_from([0.0, 2.0]))
    def fail_to_launch(self, data: st.DataObject, pause: float) -> None:
        if self.running:
            self.send(ev.LaunchFailed(data.draw(st.sampled_from(sorted(self.running))), "failed", self.now + pause))

    @rule(new=quotas)
    def limit(self, new: Quotas) -> None:
        self.send(ev.QuotasChanged(new))

    @rule(event=late)
    def be_late(self, event: ev.Event) -> None:
        self.send(event)

    @rule(job=job_ids)
    def withdraw(self, job: str) -> None:
        self.send(ev.JobWithdrawn(job, "withdrawn"))

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and the timer rings at each moment that the scheduler named."""
        end = self.now + seconds
        for _ in range(100):
            due = self.scheduler.next_due()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.send(ev.TimePassed())
        else:
            raise AssertionError("the scheduler wants to be woken for ever")
        self.now = end

    @rule(event=events)
    def anything(self, event: ev.Event) -> None:
        if not isinstance(event, ev.DrainRequested) or self.now > 100:
            self.send(event)
            self.send(event)

    @rule(nodes=clusters().filter(lambda nodes: any(node.devices and node.ends_at is None for node in nodes)))
    def all_is_well(self, nodes: tuple[Node, ...]) -> None:
        self.send(ev.NodesChanged(nodes))
        self.send(ev.QuotasChanged(Quotas()))

    @invariant()
    def the_books_balance(self) -> None:
        self.scheduler.state.check_invariants()

    @invariant()
    def nothing_is_lost_and_nothing_is_invented(self) -> None:
        jobs = self.scheduler.state.jobs
        assert set(jobs) == self.known
        assert {job.id: job.placement for job in jobs.values() if job.active} == {
            job: place for job, (place, _, _) in self.running.items()
        }

    @invariant()
    def no_device_is_idle_for_nothing(self) -> None:
        """Whoever waits although it is due is kept back by a limit, by one who lost patience, or by want of room."""
        state, profile = self.scheduler.state, self.scheduler.profile
        waiting = state.waiting()
        impatient = [
            job
            for job in waiting
            if job.due_at <= self.now and job.not_before + PATIENCE_S <= self.now and job.request.gpus
        ]
        for job in waiting:
            assert job.hold is not None, "everybody who waits has been told why"
            if job.due_at > self.now or state.limit_on(job.queue) is not None:
                continue
            place = profile.placement.place(job, state, profile.sharing)
            if place is not None:
                assert min(map(self.rank, impatient)) < self.rank(job), f"{job.id} could be at {place}"
                assert job.hold == "reserved"


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=examples(1), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

submissions = st.builds(ev.JobSubmitted, job_ids, requests, st.sampled_from(["q", "r"]), st.just(0.0), moments)
beginnings = clusters().map(lambda nodes: [(ev.NodesChanged(nodes), 0.0)])
pauses = st.sampled_from([0.0, 0.0, 0.5, 3.0])
histories = st.builds(
    lambda start, rest: start + rest,
    beginnings,
    st.lists(st.tuples(submissions | events, pauses), min_size=5, max_size=40),
)


def play(history: list[tuple[ev.Event, float]]) -> tuple[list[str], list[list[Instruction]]]:
    """The log of a history and what was instructed at each event."""
    scheduler, now = Scheduler("fifo"), 0.0
    lines, said = [record.header("fifo")], []
    for event, pause in history:
        now += pause
        lines.append(record.encode(event, now))
        said.append(scheduler.handle(event, now))
    return lines, said


@settings(max_examples=examples(0.6), deadline=None)
@given(histories)
def test_the_same_events_give_the_same_instructions_and_so_does_their_log(
    history: list[tuple[ev.Event, float]],
) -> None:
    lines, said = play(history)
    assert play(history)[1] == said
    assert [instructions for _, _, instructions in record.replay(lines)] == said


@settings(max_examples=examples(2), deadline=None)
@given(events, st.floats(allow_nan=False, allow_infinity=False))
def test_an_event_comes_back_from_its_line_as_it_was(event: ev.Event, now: float) -> None:
    line = record.encode(event, now)
    assert "\n" not in line
    assert record.decode(line) == (event, now)


def test_the_events_that_are_tried_are_all_there_are() -> None:
    seen: Counter[type] = Counter()

    @settings(max_examples=examples(10), deadline=None, database=None, derandomize=True)
    @given(events)
    def draw(event: ev.Event) -> None:
        seen[type(event)] += 1

    draw()
    assert set(seen) == set(record._EVENTS.values())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"now": 1.0}',
        '{"now": 1.0, "event": "Unheard"}',
        '{"now": 1.0, "event": ["TimePassed"]}',
        '{"now": "noon", "event": "TimePassed"}',
        '{"event": "TimePassed"}',
        '{"now": 1.0, "event": "TimePassed", "more": 1}',
        '{"now": 1.0, "event": "JobEnded", "job": "a"}',
        '{"now": 1.0, "event": "PhaseEntered", "job": "a", "status": "dancing"}',
        '{"now": 1.0, "event": "NodesChanged", "nodes": 7}',
        '{"now": 1.0, "event": "NodesChanged", "nodes": [7]}',
    ],
)
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not an event of this version"):
        record.decode(line)


def test_the_error_of_a_bad_line_has_its_number() -> None:
    lines = [record.header("fifo"), "", record.encode(ev.TimePassed(), 1.0), "spoilt"]
    replay = record.replay(lines)
    assert next(replay) == (1.0, ev.TimePassed(), [])
    with pytest.raises(ValueError, match="line 4: not an event"):
        next(replay)


@pytest.mark.parametrize("line", ["[]", "7", "{}", "{", '{"profile": "unheard of"}', '{"profile": 7}'])
def test_a_bad_header_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 1: no header of an event log"):
        list(record.replay([line]))
