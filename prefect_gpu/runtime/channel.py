"""The controller's end of the channel: one WebSocket endpoint that the runs connect to.

A run proves itself with a token made for it alone; the first process that shows it owns it. Every event is handed over
once and in order, and acknowledged after that; instructions are kept until the run has heard them, the newest of each
kind.
The words are those of :mod:`prefect_gpu.training.protocol`.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from prefect_gpu.runtime.clock import CLOCK, Clock
from prefect_gpu.training.protocol import (
    CLOSE_FORGED,
    CLOSE_MALFORMED,
    CLOSE_OVER,
    CLOSE_REUSED,
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
)

OnEvent = Callable[[str, str, float, dict[str, Any]], Awaitable[None] | None]
OnSession = Callable[[str, str], Awaitable[None] | None]

HELLO_SECONDS = 10.0
_LATEST = 1e15  # seconds; a larger number is no time, and may be no float either
_TRY_AGAIN_LATER = 1013  # WebSocket's own


def new_token() -> str:
    """A token for one launch of one run: 256 random bits, as text."""
    return secrets.token_urlsafe(32)


class _Rejected(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass
class _Run:
    token: str
    session: str | None
    acked: int = 0
    connection: ServerConnection | None = None
    ahead_s: float | None = None  # how far our clock is ahead of the run's; None: it has shown none
    newest_at: float = -math.inf  # our time of its newest event
    instructions: dict[str, str] = field(default_factory=dict)  # not yet heard: id to frame, in order
    newest: dict[str, str] = field(default_factory=dict)  # by kind: the id of its newest instruction
    # Held while an event is handled and acknowledged: a second connection of the run waits for that.
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class ChannelServer:
    """Serves the channel of every run that was admitted.

    Args:
        on_event: Called with run id, kind, time (by our clock, never earlier than that of the event before) and data of
            each event, in order for each run. What it raises is logged; the event counts as handled.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        logger: Where refused connections and errors are logged.
        on_session: Called with run id and session when a process has shown a token for the first time. Stored and
            handed to :meth:`admit` by a later worker, it keeps every other process out.
        hello_seconds: Time a connection has to say who it is.
        clock: The worker's time.

    Example:
        >>> async def main():
        ...     server = ChannelServer(lambda run, kind, at, data: print(run, kind, data))
        ...     await server.start()
        ...     token = new_token()
        ...     server.admit("run-1", token)      # and hand server.url and the token to the run
        ...     await server.instruct("run-1", "open_gate", {})
        ...     await server.close()
        >>> asyncio.run(main())
    """

    def __init__(
        self,
        on_event: OnEvent,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
        on_session: OnSession | None = None,
        hello_seconds: float = HELLO_SECONDS,
        advertise: str | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        self._clock = clock
        self._on_event = on_event
        self._on_session = on_session
        self._host = host
        self._advertise = advertise
        self._port = port
        self._logger = logger or logging.getLogger("prefect_gpu.channel")
        self._hello_seconds = hello_seconds
        self._runs: dict[str, _Run] = {}
        self._put_off: set[str] = set()
        self._server: Server | None = None
        self._closing = False
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Instruction numbers of this server; the run knows by the prefix that another worker counts anew.
        self._epoch = secrets.token_hex(4)
        self._instructed = 0

    # For the controller

    async def start(self, *, waiting: bool = False) -> None:
        """Begin to listen.

        Args:
            waiting: Whether runs that connect wait until :meth:`open` to be let in, or turned away.

        Raises:
            OSError: The address is in use, or is not this machine's.
        """
        # A browser always sends an Origin, and no page has any business here: only connections without one.
        self._server = await serve(
            self._serve,
            self._host,
            self._port,
            origins=[None],
            max_size=MAX_FRAME_BYTES,
            compression=None,
            open_timeout=self._hello_seconds,
            close_timeout=1,
            server_header=None,
            logger=_quiet,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        if not waiting:
            self.open()

    def open(self) -> None:
        """From now on it is known which runs there are."""
        self._opened.set()

    async def close(self) -> None:
        """Stop listening, after acknowledging the events that are being handled. The runs go on and reconnect."""
        self._closing = True
        for run in list(self._runs.values()):
            async with run.busy:
                if run.connection is not None:
                    self._hang_up(run.connection, 1001, "the worker ends")
                    run.connection = None
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """Where runs reach it, ``ws://host:port``; for an address that means every interface, the loopback's."""
        if self._server is None:
            raise RuntimeError("ChannelServer.url: start() it first.")
        loopback = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
        host = self._advertise or loopback.get(self._host, self._host)
        return f"ws://[{host}]:{self._port}" if ":" in host else f"ws://{host}:{self._port}"

    def admit(self, run_id: str, token: str, *, session: str | None = None) -> None:
        """Let a run connect with this token.

        Args:
            run_id: The run.
            token: From :func:`new_token`. A new token replaces the old one and whoever used it.
            session: The process that the token belongs to already, if an earlier worker has seen it.
        """
        known = self._runs.get(run_id)
        if known is not None and hmac.compare_digest(known.token.encode(), token.encode()):
            known.session = session or known.session
            return
        if known is not None:
            self.revoke(run_id)
        self._runs[run_id] = _Run(token, session)

    def put_off(self, run_id: str) -> None:
        """Tell a run whose token is not known to try again later. It goes on, unheard, and another worker may know."""
        self._put_off.add(run_id)

    def revoke(self, run_id: str) -> None:
        """The run is over: end its connection and let it in no more. An unknown run is no error."""
        self._put_off.discard(run_id)
        run = self._runs.pop(run_id, None)
        if run is not None and run.connection is not None:
            self._hang_up(run.connection, CLOSE_OVER, "the run is over")
            run.connection = None

    async def instruct(self, run_id: str, kind: str, data: dict[str, Any]) -> bool:
        """Send an instruction, now or as soon as the run connects.

        Returns:
            Whether it was sent now. Should the connection turn out to be broken, it is sent again on the next one.
            An instruction to a run that was not admitted, or is over, is dropped.
        """
        run = self._runs.get(run_id)
        if run is None:
            return False
        self._instructed += 1
        number = f"{self._epoch}-{self._instructed}"
        frame = json.dumps({"type": "instruction", "id": number, "kind": kind, "data": data})
        # Whoever does not listen for long hears the newest of each kind, and so never too much, nor too little.
        run.instructions.pop(run.newest.get(kind, ""), None)
        run.newest[kind] = number
        run.instructions[number] = frame
        if run.connection is None:
            return False
        try:
            await run.connection.send(frame)
        except ConnectionClosed:
            return False
        return True

    def connected(self, run_id: str) -> bool:
        """Whether the run is connected, as far as anybody can know."""
        run = self._runs.get(run_id)
        return run is not None and run.connection is not None

    # One connection

    async def _serve(self, connection: ServerConnection) -> None:
        run: _Run | None = None
        try:
            run_id, run = await self._welcome(connection)
            async for text in connection:
                # Only the connection that speaks for the run now is listened to.
                async with run.busy:
                    if run.connection is not connection:
                        return
                    await self._on_frame(run_id, run, connection, _parse(text))
        except _Rejected as rejected:
            if rejected.code == CLOSE_MALFORMED:
                self._logger.warning("Channel: closing %s: %s.", _peer(connection), rejected.reason)
            # A close frame has room for 123 bytes.
            await connection.close(rejected.code, rejected.reason[:100])
        except ConnectionClosed:
            pass
        except Exception:
            self._logger.exception("Channel: an error in serving %s; it may connect again.", _peer(connection))
            await connection.close(1011, "internal error")
        finally:
            if run is not None and run.connection is connection:
                run.connection = None

    async def _welcome(self, connection: ServerConnection) -> tuple[str, _Run]:
        try:
            hello = _parse(await asyncio.wait_for(connection.recv(), self._hello_seconds))
        except asyncio.TimeoutError:
            raise _Rejected(CLOSE_MALFORMED, "no hello in time") from None
        shown = hello.get("clock")
        ahead_s = self._clock() - shown if _is_time(shown) else None
        if hello.get("type") != "hello":
            raise _Rejected(CLOSE_MALFORMED, "the first frame must be a hello")
        newest = _common_version(hello)
        await self._opened.wait()
        run_id, token, session = (_text(hello, name) for name in ("run", "token", "session"))
        run = self._authenticate(run_id, token, session, connection)
        if run.session is None:
            run.session = session  # bound before anything is awaited: nobody else may use the token meanwhile
            if self._on_session is not None:
                try:
                    await _call(self._on_session, run_id, session)
                except Exception:
                    run.session = None
                    raise
        async with run.busy:
            if self._runs.get(run_id) is not run:
                raise _Rejected(CLOSE_OVER, "the run is over")
            if self._closing:
                raise _Rejected(1001, "the worker ends")
            old, run.connection = run.connection, None
            if old is not None:
                self._hang_up(old, 1000, "replaced by a new connection of the same process")
            await connection.send(json.dumps({"type": "welcome", "acked": run.acked, "protocol": newest}))
            sent: set[str] = set()
            while waiting := [number for number in run.instructions if number not in sent]:
                for number in waiting:
                    sent.add(number)
                    if number in run.instructions:  # not given up for a newer one meanwhile
                        await connection.send(run.instructions[number])
            run.ahead_s = ahead_s
            run.connection = connection  # from here on, instruct() sends at once
        return run_id, run

    def _authenticate(self, run_id: str, token: str, session: str, connection: ServerConnection) -> _Run:
        run = self._runs.get(run_id)
        if run is None and run_id in self._put_off:
            raise _Rejected(_TRY_AGAIN_LATER, "its record cannot be read, so its token is not known")
        if run is None:
            raise _Rejected(CLOSE_OVER, "the run is over, or was never known here")
        if not hmac.compare_digest(run.token.encode(), token.encode()):
            self._warn_refused(run_id, connection, "its token is not the one made for this run")
            raise _Rejected(CLOSE_FORGED, "the token is not the one made for this run")
        if run.session is not None and not hmac.compare_digest(run.session.encode(), session.encode()):
            self._warn_refused(run_id, connection, "another process uses its token already")
            raise _Rejected(CLOSE_REUSED, "another process of this run reports already")
        return run

    async def _on_frame(self, run_id: str, run: _Run, connection: ServerConnection, frame: dict[str, Any]) -> None:
        if frame.get("type") == "heard":
            run.instructions.pop(_text(frame, "id"), None)
            return
        if frame.get("type") != "event":
            if _text(frame, "type") == "hello":
                _malformed("a second hello")
            return  # of a newer version
        seq, at, shown, data = frame.get("seq"), frame.get("at"), frame.get("clock"), frame.get("data")
        kind = _text(frame, "kind")
        if type(seq) is not int or seq < 1:
            _malformed("seq is no whole number above 0")
        if not _is_time(at) or not (shown is None or _is_time(shown)):
            _malformed("at or clock is no time")
        if not isinstance(data, dict):
            _malformed("data is no object")
        if seq > run.acked:  # else it was sent again because its acknowledgement was lost
            # The clock of a run's machine may be set, and a run may claim anything.
            told = self._clock.of(at) if shown is None or run.ahead_s is None else shown + run.ahead_s
            run.newest_at = min(self._clock(), max(run.newest_at, told))
            try:
                await _call(self._on_event, run_id, kind, run.newest_at, data)
            except Exception:
                # Refusing it would only bring the same event back, for ever.
                self._logger.exception("Handling event %d (%s) of run %s failed.", seq, kind, run_id)
            run.acked = seq
        await connection.send(json.dumps({"type": "ack", "seq": run.acked}))

    def _warn_refused(self, run_id: str, connection: ServerConnection, why: str) -> None:
        self._logger.warning("Channel: refused a connection for run %.80r from %s: %s.", run_id, _peer(connection), why)

    def _hang_up(self, connection: ServerConnection, code: int, reason: str) -> None:
        """Close without waiting for the other side."""
        task = asyncio.get_running_loop().create_task(connection.close(code, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_quiet = logging.getLogger("prefect_gpu.channel.websockets")
_quiet.setLevel(logging.CRITICAL)  # port scanners and broken handshakes are no news


def _common_version(hello: dict[str, Any]) -> int:
    """The newest version that a run and we speak.

    One that speaks none of ours is not turned away for good: it trains on, and the next worker may understand it.
    """
    oldest = hello.get("protocol")
    newest = hello.get("newest", oldest)
    if type(oldest) is not int or type(newest) is not int:
        _malformed("protocol is no whole number")
    if oldest > PROTOCOL_VERSION or newest < OLDEST_PROTOCOL:
        ours = f"{OLDEST_PROTOCOL} to {PROTOCOL_VERSION}"
        raise _Rejected(_TRY_AGAIN_LATER, f"this worker speaks protocol {ours}, the run {oldest} to {newest}")
    return min(newest, PROTOCOL_VERSION)


def _parse(text: str | bytes) -> dict[str, Any]:
    if not isinstance(text, str):
        _malformed("a binary frame")
    try:
        frame = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        _malformed("a frame that is no JSON")
    if not isinstance(frame, dict):
        _malformed("a frame that is no JSON object")
    return frame


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LATEST  # NaN is not


def _text(frame: dict[str, Any], name: str) -> str:
    value = frame.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 512 or not value.isprintable():
        _malformed(f"{name} is no text of 1 to 512 characters")
    return value


def _malformed(what: str) -> NoReturn:
    raise _Rejected(CLOSE_MALFORMED, what)


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) > 1 else str(address)


async def _call(function: Callable[..., Any], *arguments: Any) -> None:
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result
