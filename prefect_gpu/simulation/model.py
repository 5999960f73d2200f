"""What a simulated job really is: the truth, of which the scheduler is told only what the set-up says it knows."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request

ONE_GPU = Request()


@dataclass(frozen=True)
class JobModel:
    """One job of a workload.

    Attributes:
        submit_s: When it is submitted.
        service_s: Seconds that it trains for on what it asks for, undisturbed.
        launching_s: Seconds from a launch until it could train (process, imports, data); again at each restart.
        saving_s: Seconds from the end of training to the end of the process.
        checkpoint_s: Seconds to save its progress when it is told to stop or move.
        restore_s: Seconds to load its progress at a restart, beside ``launching_s``.
        estimate: What the scheduler is told of it at submission.
        throughput: Steps per second on 1, 2, 3 … devices; the speed of an elastic job on other counts than it asks for.
        utilisation: Mean use of each of its devices while it trains undisturbed, 0 to 1.
        memory_bytes: Peak memory on each device.
        network_share: Part of an iteration that is communication when all instances are on one node of their own,
            0 to 1: what a worse placement stretches.
        cores: Cores per instance that it needs for full speed (CODA's optimum); None: any number will do.
        memory_bandwidth: Part of a node's memory bandwidth that it uses at full speed, 0 to 1.
        memory_sensitivity: Part of its speed that it loses while the node's memory bandwidth is used up, 0 to 1.
        resumes: Whether it carries on from its progress after a stop; else it begins again.
        losses: Evaluation value after each of equal parts of its service, the first before it starts.
        fails_after_s: Seconds of service after which it crashes, once; None: never.
        kind: The program.
    """

    id: str
    submit_s: float
    service_s: float
    request: Request = ONE_GPU
    launching_s: float = 0.0
    saving_s: float = 0.0
    checkpoint_s: float = 0.0
    restore_s: float = 0.0
    estimate: Estimate = UNKNOWN
    throughput: tuple[float, ...] = ()
    utilisation: float = 1.0
    memory_bytes: int = 0
    network_share: float = 0.0
    cores: int | None = None
    memory_bandwidth: float = 0.0
    memory_sensitivity: float = 0.0
    resumes: bool = True
    losses: tuple[float, ...] = ()
    fails_after_s: float | None = None
    queue: str = "default"
    kind: str = ""

    def loss_at(self, done_s: float) -> float:
        """Evaluation value after so many seconds of service, linear between the points of ``losses``."""
        last = len(self.losses) - 1
        at = min(max(done_s / self.service_s, 0.0), 1.0) * last if self.service_s else last
        low = min(int(at), last)
        high = min(low + 1, last)
        return self.losses[low] + (at - low) * (self.losses[high] - self.losses[low])

    def speed_on(self, gpus: int) -> float:
        """Seconds of service per second on so many devices, 1 on what it asks for (F-scheduling's f_M, relative)."""
        asked = self.request.total_gpus
        if gpus == asked or not self.throughput:
            return 1.0
        at_asked = self.throughput[min(asked, len(self.throughput)) - 1]
        return self.throughput[min(gpus, len(self.throughput)) - 1] / at_asked if at_asked else 0.0
