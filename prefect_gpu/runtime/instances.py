"""What starts each instance of a run: the host's specification, completed with what the live world knows of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.runtime.drivers.base import Driver, LaunchSpec
from prefect_gpu.runtime.fleet import Fleet
from prefect_gpu.runtime.gang import instance_environment, instance_folder, instance_id
from prefect_gpu.runtime.run_environment import channel_environment, run_environment
from prefect_gpu.runtime.tracked import TrackedRun

CHANNEL_FILE = "channel.json"  # where the channel is, for runs whose worker is another one by now


class Instances:
    """Makes one specification for each instance.

    Args:
        locks: Folder of the devices' lock files, where the driver has none of its own.
        channel_file: Where runs find the channel's address, where the driver brings no files to them.
    """

    def __init__(
        self, driver: Driver, fleet: Fleet, checkpoints: RunCheckpoints, locks: Path, channel_file: Path
    ) -> None:
        self._driver = driver
        self._fleet = fleet
        self._checkpoints = checkpoints
        self._locks = locks
        self._channel_file = channel_file

    def of(self, run: TrackedRun, spec: LaunchSpec, channel_url: str) -> list[LaunchSpec]:
        """The specifications of all instances, instance 0 first, which reports for the run.

        Args:
            run: Its placement says where the instances go.
            spec: The host's, of the whole run.
            channel_url: Where instance 0 reports to.
        """
        placement = run.record.placement
        meeting = self._driver.meeting_point(run.run_id, run.folder) if len(placement.parts) > 1 else None
        specs = []
        for rank, part in enumerate(placement.parts):
            devices = self._fleet.devices_of(part)
            own = run_environment(
                run_id=run.run_id,
                devices=devices,
                cpus=part.cpus,
                checkpoints=self._checkpoints.of(run.run_id),
                locks=self._driver.locks or self._locks,
                shared=placement.shared,
                memory_bytes=placement.memory_bytes,
                local=self._driver.local,
            )
            if rank == 0:
                own |= channel_environment(
                    token=run.record.token,
                    url=channel_url,
                    file=self._driver.files / CHANNEL_FILE if self._driver.files else self._channel_file,
                    gated=run.record.behind is not None,  # its gate may have been opened while it was being launched
                    keep_best=run.record.request.converged == "stop",
                )
            if meeting is not None:
                own |= instance_environment(placement, rank, *meeting)
            specs.append(
                dataclasses.replace(
                    spec,
                    run_id=instance_id(run.run_id, rank),
                    run_dir=instance_folder(run.folder, rank),
                    argv=spec.argv if rank == 0 else spec.instance_argv or spec.argv,
                    env=spec.env | own,
                    told_at=spec.told_at if rank == 0 else (),
                    cpus=part.cpus,
                    gpus=tuple(device.id for device in devices if not device.virtual),
                    shares=(*spec.shares, *self._checkpoints.shared(run.run_id)),
                    node=part.node,
                    meets=meeting is not None,
                    label=run.record.name if rank == 0 else f"{run.record.name}.{rank}",
                )
            )
        return specs
