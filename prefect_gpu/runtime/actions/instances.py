"""Starts the instances of a run: the host's specification, completed with what the live world knows of each."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from contextlib import suppress
from pathlib import Path

from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.drivers.base import Driver, LaunchSpec, RunHandle
from prefect_gpu.runtime.launch.gang import (
    adopt_together,
    instance_environment,
    instance_folder,
    instance_id,
    instances_in,
    launch_together,
)
from prefect_gpu.runtime.launch.launch import SAVED_BEFORE, Launch
from prefect_gpu.runtime.launch.run_environment import channel_environment, run_environment
from prefect_gpu.training import protocol

CHANNEL_FILE = "channel.json"  # where the channel is, for runs whose worker is another one by now
CREDENTIALS_FILE = "s3-credentials.json"  # newer ones than a run has begun with


class Instances:
    """Starts and adopts the instances of runs, and lets them find and use the channel.

    Args:
        state_dir: Holds the devices' lock files and the file with the channel's address, where the driver brings no
            files of its own to the runs.
    """

    def __init__(
        self,
        driver: Driver,
        fleet: Fleet,
        checkpoints: RunCheckpoints,
        channel: ChannelServer,
        *,
        state_dir: Path,
        pool: str,
        logger: logging.Logger,
    ) -> None:
        self._driver = driver
        self._fleet = fleet
        self._checkpoints = checkpoints
        self._channel = channel
        self._locks = state_dir / "locks"
        self._channel_file = state_dir / "channels" / f"{pool}.json"
        self._logger = logger

    def publish(self) -> None:
        """Write down where the channel is, now that it is open."""
        self._locks.mkdir(parents=True, exist_ok=True)
        self._channel_file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._channel_file.with_suffix(".tmp")
        temporary.write_bytes(self._address)
        temporary.replace(self._channel_file)

    @property
    def _address(self) -> bytes:
        return json.dumps({"url": self._channel.url}).encode()

    async def launch(self, launch: Launch, spec: LaunchSpec) -> RunHandle:
        """Start all instances, or none; see :func:`.launch_together`.

        Args:
            spec: The host's, of the whole run.
        """
        self._channel.admit(launch.run_id, launch.record.token)
        return await launch_together(self._driver, self._specify(launch, spec), self._logger)

    async def adopt(self, launch: Launch) -> RunHandle | None:
        """Find what an earlier worker started; see :func:`.adopt_together`.

        Even if that fails, the run is heard: a process that nobody knows would end itself.
        """
        run_id = launch.run_id
        if launch.record.token:
            self._channel.admit(run_id, launch.record.token, session=launch.record.session)
        else:
            self._channel.put_off(run_id)
        count = max(len(launch.record.placement.parts), instances_in(launch.folder))
        launched = [(instance_id(run_id, rank), instance_folder(launch.folder, rank)) for rank in range(count)]
        handle = await adopt_together(self._driver, launched, self._logger)
        if handle is not None:
            await handle.give(CHANNEL_FILE, self._address)
        return handle

    async def give_credentials(self, launch: Launch, credentials: str) -> None:
        """Put newer credentials for its checkpoints where the run looks for them."""
        if self._driver.files is None:
            await asyncio.to_thread(_write_own, launch.folder / CREDENTIALS_FILE, credentials)
        elif launch.handle is not None:
            await launch.handle.give(CREDENTIALS_FILE, credentials.encode())

    def dismiss(self, launch: Launch) -> None:
        """Nobody speaks for the launch any more."""
        self._channel.revoke(launch.run_id)

    def _specify(self, run: Launch, spec: LaunchSpec) -> list[LaunchSpec]:
        """The specifications of all instances, instance 0 first, which reports for the run."""
        placement = run.record.placement
        gang = len(placement.parts) > 1 or run.record.request.grows  # which may be one instance for now
        meeting = self._driver.meeting_point(run.run_id, run.folder, placement.parts[0].node) if gang else None
        specs = []
        for rank, part in enumerate(placement.parts):
            devices = self._fleet.devices_of(part)
            own = run_environment(
                run_id=run.run_id,
                devices=devices,
                cpus=part.cpus,
                checkpoints=self._checkpoints.of(run.run_id),
                pool=self._checkpoints.pool,
                locks=self._driver.locks or self._locks,
                shared=placement.shared,
                memory_bytes=placement.memory_bytes,
                local=self._driver.local,
                batch_size=run.record.batch_size,
                batch_sizes=run.record.request.batch_sizes,
                saved_step=run.record.known.get(SAVED_BEFORE),
            )
            if rank == 0:
                own |= channel_environment(
                    token=run.record.token,
                    url=self._channel.url,
                    file=self._driver.files / CHANNEL_FILE if self._driver.files else self._channel_file,
                    gated=run.record.behind is not None,  # its gate may have been opened while it was being launched
                    keep_best=run.record.request.converged == "stop",
                    stays=not run.record.request.preemptible,
                )
            if protocol.ENV_CREDENTIALS in spec.env:
                own[protocol.ENV_CREDENTIALS_FILE] = str((self._driver.files or run.folder) / CREDENTIALS_FILE)
            if meeting is not None:
                own |= instance_environment(placement, rank, *meeting)
            specs.append(
                dataclasses.replace(
                    spec,
                    run_id=instance_id(run.run_id, rank),
                    run_dir=instance_folder(run.folder, rank),
                    argv=spec.instance_argv or spec.argv if gang else spec.argv,
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


def _write_own(path: Path, text: str) -> None:
    """Write a file that only this user can read, at once; nothing where its folder is gone: the run is over."""
    new = path.with_suffix(".tmp")
    with suppress(FileNotFoundError):
        new.unlink(missing_ok=True)
        new.touch(0o600)
        new.write_text(text)
        new.replace(path)
