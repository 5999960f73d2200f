"""Warm containers: made before the run that they will be, with an interpreter that has imported what runs import.

After a launch, another container of the same :class:`Kind` is made, and waits. The next launch of that kind takes it:
it gets the launch's name, cores and job, and begins. What it waits with is in :mod:`.waiting`. Each serves one run.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from logging import Logger, LoggerAdapter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import requests
from docker.errors import APIError, DockerException, NotFound

from prefect_gpu.runtime.drivers.base import ContainerSpec, LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.docker import containers
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, explained
from prefect_gpu.runtime.drivers.docker.handle import Made
from prefect_gpu.runtime.drivers.docker.said import Lines
from prefect_gpu.runtime.drivers.docker.waiting import GAVE_WAY
from prefect_gpu.runtime.drivers.fork_compatibility import acts_at_start

if TYPE_CHECKING:
    from docker import DockerClient

_REST_S = 60.0  # after a node's memory was found tight
_MARGIN_S = 300.0  # a container gives itself up so much later than the worker gives it up
_REMEMBERED = 32  # kinds that cannot be warm
_CONFLICT = 409  # what an engine says of a signal for a container that does not run


@dataclass(frozen=True)
class Ahead:
    """What containers do ahead, and how many of them.

    Attributes:
        preload: Modules that their interpreters import. One that an image does not have is left out.
        after_fork: ``"module:function"``, called in the run before its own module. Where an image does not have it,
            nothing is started warm.
        environment: Variables of the interpreter until it becomes a run, which has its own.
        labels_of_runs: What the names of labels begin with that say whose run it is: a container that waits cannot
            have them, nor get them later.
        most: How many wait on a node, each for another kind of launch.
        keep_s: Seconds for which a container waits for its launch.
        keep_free: The part of a node's memory that must be free; with less, nothing waits there.
    """

    preload: tuple[str, ...] = ()
    after_fork: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    labels_of_runs: tuple[str, ...] = ()
    most: int = 2
    keep_s: float = 600.0
    keep_free: float = 0.1


@dataclass(frozen=True)
class Kind:
    """What a launch must have in common with a container that waits. All of it is fixed as a container is made.

    Attributes:
        image: The image, by its id: a tag that was pulled anew is another kind.
        how: Volumes, limits, network, and those labels that do not say whose run it is.
        program: The interpreter's name.
        environment: The variables that act when an interpreter starts. Nothing else of a run's environment is here.
    """

    image: containers.Image
    how: ContainerSpec
    program: str
    environment: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: LaunchSpec, how: ContainerSpec, image: containers.Image, ahead: Ahead) -> Kind:
        """The kind of a launch."""
        labels = {name: value for name, value in how.labels.items() if not name.startswith(ahead.labels_of_runs)}
        acting = {name: value for name, value in spec.env.items() if acts_at_start(name)}
        return cls(image, replace(how, labels=labels), spec.argv[0], tuple(sorted(acting.items())))


def may_be_warm(spec: LaunchSpec, how: ContainerSpec) -> bool:
    """Whether a launch may take a container that was made before it.

    Not a gang's, whose instances find each other by names that are a network's from the start; not one with GPUs,
    which a container is given as it is made; not one with a folder that its volumes do not contain; and only one that
    runs a module of Python.
    """
    python = len(spec.argv) > 2 and PurePosixPath(spec.argv[0]).name.startswith("python") and spec.argv[1] == "-m"
    return python and not spec.gpus and not spec.meets and all(_is_seen(folder, how) for folder in spec.shares)


def _is_seen(folder: Path, how: ContainerSpec) -> bool:
    """Whether a volume shows this folder at the same place, to be written to."""
    for volume in how.volumes:
        outside, _, rest = volume.partition(":")
        inside, _, mode = rest.partition(":")
        if outside == inside and "ro" not in mode.split(",") and folder.is_relative_to(outside):
            return True
    return False


@dataclass(frozen=True)
class _Waiting:
    kind: Kind
    name: str
    container: str
    mark: str
    since: float


class _Died(Exception):
    """A container has ended while it waited."""


class WarmContainers:
    """Those of one engine. Safe to use from several threads; all methods but :meth:`holds` wait for the engine.

    Args:
        client: The engine.
        endpoint: How it was reached, for messages.
        node: What its machine is called.
        pool: Whose the containers are.
        ahead: What they do.
        logger: Told of what went wrong.
    """

    def __init__(
        self,
        client: DockerClient,
        endpoint: Endpoint,
        node: str,
        pool: containers.Pool,
        ahead: Ahead,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._client, self._endpoint, self._node, self._pool = client, endpoint, node, pool
        self._ahead, self._logger = ahead, logger
        self._lock = threading.Lock()
        self._ready: list[_Waiting] = []  # the one used last at the end
        self._making: list[Kind] = []
        self._names: set[str] = set()  # of all that are ours, ready or not
        self._hopeless: list[Kind] = []
        self._said: set[str] = set()
        self._rests_until = 0.0
        self._closed = False
        self._maker = ThreadPoolExecutor(1, thread_name_prefix=f"warm {node}")  # one after another: it costs a core

    def holds(self, name: str) -> bool:
        """Whether a container of this name is one of ours that waits, or will."""
        return name in self._names

    def waiting(self) -> int:
        """How many are ready."""
        return len(self._ready)

    def launch(
        self, kind: Kind, spec: LaunchSpec, name: str, about_to_begin: Callable[[Made], None], contacts: bytes = b""
    ) -> Made | None:
        """Start a run in a container that waits.

        Args:
            name: The launch's container name.
            about_to_begin: Called with the container when it has the launch's name and job. If it raises, the
                container is removed and nothing was started.
            contacts: Whom it must be able to reach: see :mod:`.fencing`.

        Returns:
            The container; None, with nothing started and no container of this name there, if there is none for it.

        Raises:
            LaunchError: It could not be started.
        """
        ready = self._take(kind)
        if ready is None:
            return None
        made = Made(ready.container, self._node, ready.mark, len(spec.cpus), warm=True)
        begun = False
        try:
            with self._asking():
                try:
                    self._client.api.rename(ready.container, name)
                except NotFound:
                    raise _Died from None
                # From here on, one that is not there has been removed by who revoked the launch: no second try.
                containers.hand_over(self._client, ready.container, spec, kind.image, ready.mark, contacts)
            about_to_begin(made)
            with self._asking():
                containers.begin(self._client, ready.container)
            begun = True
        except _Died:
            return None
        finally:
            self._names.discard(ready.name)
            if not begun:
                self._remove(ready.container)
        return made

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        with explained(self._endpoint, "give a warm container its run"):
            try:
                yield
            except APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                raise _Died from error

    def keep(self, kind: Kind) -> None:
        """Have one ready for the next launch of a kind that was launched just now. Returns at once."""
        with self._lock:
            surplus = [one for one in self._ready if one.kind != kind and replace(one.kind, image=kind.image) == kind]
            self._ready = [one for one in self._ready if one not in surplus]  # their image was pulled anew
            known = kind in self._making or kind in self._hopeless or any(one.kind == kind for one in self._ready)
            resting = self._closed or time.monotonic() < self._rests_until
            if not known and not resting and len(self._making) < self._ahead.most:
                self._making.append(kind)
                self._maker.submit(self._make, kind)
                too_many = max(0, len(self._ready) + len(self._making) - self._ahead.most)
                surplus += self._ready[:too_many]
                self._ready = self._ready[too_many:]
        for one in surplus:
            self._drop(one)

    def check(self) -> None:
        """Remove those that waited long enough, and replace those that died."""
        for one in tuple(self._ready):
            late = time.monotonic() > one.since + self._ahead.keep_s
            state = None if late else self._state(one.container)
            if not late and state is not None and state.get("Running"):
                continue
            with self._lock:
                if one not in self._ready:
                    continue  # it was taken meanwhile
                self._ready.remove(one)
            self._drop(one)
            if not late and not (state is not None and state.get("ExitCode") == GAVE_WAY):
                self._logger.info("Warm container %s on %s died as it waited, and is replaced.", one.name, self._node)
                self.keep(one.kind)

    def cool(self) -> None:
        """Remove all that wait: no runs are expected."""
        with self._lock:
            ready, self._ready = self._ready, []
        for one in ready:
            self._drop(one)

    def forget(self) -> None:
        """The machine is gone, and all containers with it. What is left of them is removed when it is back."""
        self._end()
        self._names.clear()

    def close(self) -> None:
        """Remove all, and make no more."""
        self._end()
        for name in tuple(self._names):  # one that is being made ends so, too
            self._remove(name)
        self._names.clear()

    def _end(self) -> None:
        with self._lock:
            self._closed, self._ready = True, []
            self._maker.shutdown(wait=False, cancel_futures=True)

    # -- making ------------------------------------------------------------------------------------------------------

    def _take(self, kind: Kind) -> _Waiting | None:
        oldest = time.monotonic() - self._ahead.keep_s
        with self._lock:
            for one in self._ready:
                if one.kind == kind and one.since > oldest:
                    self._ready.remove(one)
                    return one
        return None

    def _make(self, kind: Kind) -> None:
        name = f"{containers.IDLE}{secrets.token_hex(6)}"
        self._names.add(name)
        ready = None
        try:
            if not self._closed:
                ready = self._warm_up(kind, name)
        except LaunchError as error:
            if not self._closed:
                self._say(f"No warm container of {kind.how.image} on {self._node}: {error}")
        except Exception:  # nothing of this may be a run's trouble, nor end the thread unseen
            self._logger.exception("A warm container of %s on %s could not be made.", kind.how.image, self._node)
        with self._lock:
            if ready is not None and not self._closed:
                self._ready.append(ready)
                self._making.remove(kind)
                return
        self._remove(name)
        self._names.discard(name)
        with self._lock:
            self._making.remove(kind)

    def _warm_up(self, kind: Kind, name: str) -> _Waiting | None:
        mark = f"prefect-gpu-{secrets.token_hex(8)}"
        task = {
            "mark": mark,
            "program": kind.program,
            "env": {**kind.image.environment, **dict(self._ahead.environment), **dict(kind.environment)},
            "preload": list(self._ahead.preload),
            "after_fork": self._ahead.after_fork,
            "keep_free": self._ahead.keep_free,
            "idle_s": self._ahead.keep_s + _MARGIN_S,
        }
        with explained(self._endpoint, f"make a warm container of {kind.how.image}"):
            container = containers.create_idle(self._client, kind.how, kind.image, name, self._pool, task)
            self._client.api.start(container)
            said = self._first_word(container, mark)
        if "tight" in said:
            self._rests_until = time.monotonic() + _REST_S
            self._say(f"Node {self._node} has little memory left: no containers wait there.")
            return None
        if "ready" not in said:
            if not self._closed:
                with self._lock:
                    self._hopeless = [*self._hopeless[-_REMEMBERED:], kind]
                reason = said.get("unfit", "its interpreter died as it warmed up")
                self._say(f"No warm starts with {kind.how.image}: {reason}. Its runs are started cold.")
            return None
        for module, error in said["ready"]["failed"].items():
            self._say(f"Warm starts with {kind.how.image} go without {module}, which cannot be imported: {error}")
        return _Waiting(kind, name, container, mark, time.monotonic())

    def _first_word(self, container: str, mark: str) -> dict[str, Any]:
        """What it says when its interpreter has imported everything, or when it ends before; empty if nothing."""
        lines = Lines(mark)
        stream = self._client.api.logs(container, stream=True, follow=True)
        try:
            for block in stream:
                for line in lines.feed(block):
                    if isinstance(line, dict):
                        return line
        finally:
            with contextlib.suppress(Exception):  # it has ended
                stream.close()
        return {}

    def _say(self, text: str) -> None:
        """Loudly, but each thing only once."""
        level = "info" if text in self._said else "warning"
        self._said.add(text)
        getattr(self._logger, level)("%s", text)

    def _state(self, container: str) -> dict[str, Any] | None:
        with explained(self._endpoint, "tell how a container ended"):
            try:
                return dict(self._client.api.inspect_container(container)["State"])
            except NotFound:
                return None

    def _drop(self, one: _Waiting) -> None:
        self._remove(one.container)
        self._names.discard(one.name)

    def _remove(self, container: str) -> None:
        """If it cannot be removed now, it is swept later."""
        try:
            containers.remove(self._client, container)
        except (DockerException, requests.exceptions.RequestException) as error:
            self._logger.info("A container on %s could not be removed now: %s", self._node, error)
