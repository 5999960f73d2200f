"""The run's end of the channel: one daemon thread that sends events, hears instructions and samples usage.

A broken channel never harms training: nothing here is awaited by the training's thread except, for a bounded time,
in :meth:`ChannelClient.flush`. Importing this module starts nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from prefect_gpu.training.channel.outbox import Outbox
from prefect_gpu.training.protocol import (
    CLOSE_FORGED,
    CLOSE_MALFORMED,
    CLOSE_OVER,
    CLOSE_REUSED,
    OLDEST_PROTOCOL,
    PROGRESS,
    PROTOCOL_VERSION,
    USAGE,
)

logger = logging.getLogger("prefect_gpu.training")

PROGRESS_SECONDS = 0.25  # at most one PROGRESS event in this time
SAMPLE_SECONDS = 1.0  # one look at this process's usage
USAGE_SECONDS = 2.0  # one USAGE event
BACKOFF_SECONDS = (0.1, 5.0)  # first and longest pause between two attempts to connect
WELCOME_SECONDS = 10.0
SILENCE_SECONDS = 20.0  # an event unacknowledged for so long means that the connection is dead
_POLL_SECONDS = 0.02
FATAL_CODES = {CLOSE_FORGED, CLOSE_REUSED, CLOSE_OVER, CLOSE_MALFORMED}  # trying again cannot help


class Source(Protocol):
    """Where progress comes from."""

    dirty: bool

    def take(self) -> dict[str, Any] | None:
        """What is new, or None."""


class Sampler(Protocol):
    """Where usage comes from."""

    def sample(self) -> None:
        """Look at the process."""

    def take(self) -> dict[str, Any]:
        """The newest samples, summed up."""


class ChannelRefused(Exception):
    """The controller will not talk to this process, now or later."""

    def __init__(self, reason: str, code: int | None) -> None:
        super().__init__(reason)
        self.code = code


class ChannelClient:
    """Sends this process's events to the controller, whichever worker that is, and hears its instructions.

    Args:
        run_id: The run's id.
        token: The token that was made for it.
        address: Called before each attempt to connect: the channel's URL (a new worker listens on a new port), or
            None if it is not known at the moment.
        on_instruction: Called in the channel's thread with kind and data.
        sampler: Its samples are sent as USAGE events.
        superseded: Called in the channel's thread when the controller has given this process up, and the run goes on
            in another one, or is over.

    Attributes:
        connected: Whether the controller can be reached right now.
        refused: Why the controller will never talk to this process, or None.
        second: Whether that is because another process of the run reports.
        asleep: Whether the thread has to be woken (:meth:`wake`) to notice new progress soon.
        source: Where the thread takes progress from; set by the current training run.
    """

    def __init__(
        self,
        run_id: str,
        token: str,
        address: Callable[[], str | None],
        on_instruction: Callable[[str, dict[str, Any]], None],
        sampler: Sampler | None = None,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self.run_id = run_id
        self.session = os.urandom(16).hex()
        self.connected = False
        self.refused: str | None = None
        self.second = False
        self.asleep = False
        self.source: Source | None = None
        self._token = token
        self._address = address
        self._on_instruction = on_instruction
        self._sampler = sampler
        self._superseded = superseded
        self._outbox = Outbox()
        self._heard: deque[str] = deque(maxlen=256)
        self._broken_since = time.monotonic()
        self._hurry = threading.Event()  # somebody waits in flush(): do not sit out the backoff
        self._waited_in_vain = 0.0
        self._ended = False
        self._wire: Any = None
        self._next_progress = self._next_sample = self._next_usage = 0.0
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._thread = threading.Thread(target=self._run, name="prefect-gpu-channel", daemon=True)

    # Called by the training's thread.

    def start(self) -> None:
        """Start connecting, in the background."""
        self._thread.start()

    def post(self, kind: str, data: dict[str, Any]) -> None:
        """Queue an event and have it sent at once."""
        if self.refused is None:
            self._outbox.add(kind, data)
            self.wake()

    def wake(self) -> None:
        """Make the thread look for something to send."""
        self.asleep = False
        with contextlib.suppress(OSError):  # the pipe is full of wake-ups already, or the process is ending
            os.write(self._wake_out, b"!")

    @property
    def crowded(self) -> bool:
        """Whether so much waits to be acknowledged that less urgent things had better wait, too."""
        return self._outbox.crowded()

    def broken_seconds(self) -> float:
        """How long the controller has been out of reach; 0 while it is connected."""
        return 0.0 if self.connected else time.monotonic() - self._broken_since

    def heard_of(self, timeout: float) -> bool:
        """Wait until the controller has let this process in, or has turned it away.

        A process that was given up is ended as soon as it connects (``superseded``). Whoever is about to say something
        final for its run asks first: what such a process says is not the run's end.

        Args:
            timeout: Seconds to wait at most: a controller that is away is no reason to hold anything up.

        Returns:
            Whether either has happened.
        """
        self._hurry.set()
        until = time.monotonic() + timeout
        while not (self.connected or self.refused is not None):
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def flush(self, timeout: float) -> bool:
        """Wait until everything posted so far has been acknowledged.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether everything was.
        """
        self._hurry.set()
        self.wake()
        begin = time.monotonic()
        done = self._outbox.wait_empty(timeout, lambda: self.refused is not None)
        self._hurry.clear()
        self._waited_in_vain = 0.0 if done else self._waited_in_vain + time.monotonic() - begin
        return done

    def close(self, timeout: float = 2.0) -> None:
        """Flush for at most ``timeout`` seconds and end the thread. Can be called again."""
        if self._ended:
            return
        if self._thread.is_alive():
            # What saving() has waited in vain is not waited once more at the end of the process.
            self.flush(max(0.0, timeout - self._waited_in_vain))
        self._ended = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(0.5)

    def abandon(self) -> None:
        """In a forked child: this is the parent's connection, not ours. Forget it without a word to anybody."""
        self._ended = True
        self.asleep = False
        self.source = None
        self.refused = "this process was forked from the one that reports"
        if self._wire is not None:
            self._wire.socket.close()  # only this process's copy: the connection would outlive the parent otherwise
        for descriptor in (self._wake_in, self._wake_out):
            os.close(descriptor)
        self._wake_in = self._wake_out = -1

    # The channel's thread.

    def _run(self) -> None:
        first, longest = BACKOFF_SECONDS
        pause = first / 2
        while not self._ended:
            welcomed = False
            try:
                wire = self._wire = self._connect()
                try:
                    welcomed = True
                    self._talk(wire)
                finally:
                    self._lost()
                    wire.close()
            except ChannelRefused as error:
                self.refused = str(error)
                self.second = error.code == CLOSE_REUSED
                self._outbox.clear()
                if error.code in (CLOSE_FORGED, CLOSE_OVER):  # our token was good when we were launched
                    self._superseded()
                logger.warning(
                    "The controller refused run %s: %s. Training goes on, but it is no longer reported%s.",
                    self.run_id,
                    error,
                    ", and saves no checkpoints" if self.second else "",
                )
                return
            except Exception as error:  # whatever it is, it must not end the reporting for good
                logger.debug("The channel of run %s is broken: %r", self.run_id, error)
            pause = first if welcomed else min(pause * 2, longest)
            self._rest(pause)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._ended and time.monotonic() < until:
            # Samples go on, for the peaks; an event posted meanwhile waits in the outbox.
            self._sample(time.monotonic())
            if self._hurry.wait(min(SAMPLE_SECONDS, until - time.monotonic())):
                self._hurry.clear()
                return

    def _connect(self) -> Any:
        from prefect_gpu.training.channel.wire import Wire  # the first use of websockets

        url = self._address()
        if url is None:
            raise OSError("the channel's address is not known")
        wire = Wire(url)
        try:
            hello = {
                "type": "hello",
                "protocol": OLDEST_PROTOCOL,
                "newest": PROTOCOL_VERSION,
                "run": self.run_id,
                "token": self._token,
                "session": self.session,
                "clock": time.monotonic(),
            }
            wire.send(json.dumps(hello))
            deadline = time.monotonic() + WELCOME_SECONDS
            welcome: dict[str, Any] | None = None
            while welcome is None:
                if time.monotonic() > deadline:
                    raise OSError("the controller did not answer")
                for text in self._receive(wire) if wire.wait(deadline - time.monotonic()) else ():
                    frame = json.loads(text)
                    if welcome is None:
                        if frame.get("type") != "welcome":
                            raise OSError("the controller did not say welcome")
                        welcome = frame
                    else:
                        self._on_frame(wire, frame)
            self._outbox.resume(int(welcome["acked"]))
        except BaseException:
            wire.close()
            raise
        self.connected = True
        return wire

    def _lost(self) -> None:
        self._wire = None
        self.connected = self.asleep = False
        self._broken_since = time.monotonic()

    def _receive(self, wire: Any) -> list[str]:
        from prefect_gpu.training.channel.wire import WireClosed

        try:
            return wire.receive()
        except WireClosed as error:
            if error.code in FATAL_CODES:
                raise ChannelRefused(error.reason or f"code {error.code}", error.code) from error
            raise

    def _talk(self, wire: Any) -> None:
        while True:
            now = time.monotonic()
            self._sample(now)
            self._collect(now)
            for frame in self._outbox.unsent():
                wire.send(frame)
            if self._ended:
                return
            if self._outbox.silent_for(now) > SILENCE_SECONDS:
                raise OSError("the controller has stopped answering")
            if wire.wait(self._nap(), self._wake_in):
                for text in self._receive(wire):
                    self._on_frame(wire, json.loads(text))
            self._drain_wakes()

    def _nap(self) -> float:
        """Seconds until there is something to do, if nobody wakes us.

        After a send, the thread looks by itself whether there is more (a fast loop need not wake it at all); when there
        is not, it says so in ``asleep`` *before* looking a last time, so that no report falls in between.
        """
        self.asleep = True
        now = time.monotonic()
        if self._outbox.has_unsent():
            self.asleep = False
            return 0.0
        nap = max(0.0, self._next_sample - now)
        if now < self._next_progress or (self.source is not None and self.source.dirty):
            self.asleep = False
            nap = min(nap, max(0.0, self._next_progress - now))
        return nap

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._wake_in, 4096):
                pass
        except OSError:
            pass

    def _sample(self, now: float) -> None:
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_SECONDS
            if self._sampler is not None:
                self._sampler.sample()

    def _collect(self, now: float) -> None:
        """Turn what is new into events, unless the controller is behind: then newer values replace older ones here."""
        if self._outbox.crowded():
            self._next_progress = max(self._next_progress, now + PROGRESS_SECONDS)
            return
        source = self.source
        if source is not None and source.dirty and now >= self._next_progress:
            data = source.take()
            if data is not None:
                self._next_progress = now + PROGRESS_SECONDS
                self._outbox.add(PROGRESS, data)
        if self._sampler is not None and now >= self._next_usage:
            self._next_usage = now + USAGE_SECONDS
            usage = self._sampler.take()
            if usage:
                self._outbox.add(USAGE, usage)

    def _on_frame(self, wire: Any, frame: dict[str, Any]) -> None:
        kind = frame.get("type")
        if kind == "ack":
            self._outbox.acknowledge(int(frame["seq"]))
        elif kind == "instruction":
            number = str(frame["id"])
            if number not in self._heard:
                self._heard.append(number)
                self._on_instruction(str(frame["kind"]), dict(frame["data"]))
            wire.send(json.dumps({"type": "heard", "id": frame["id"]}))
