"""A benchmark that is stopped leaves neither its server nor its worker."""

from __future__ import annotations

import signal

import pytest

from benchmarks._host import served


def test_a_benchmark_that_is_told_to_end_stops_what_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    closed_with = []

    class Told(served.Sandbox):
        def start_server(self, meanwhile: object = None) -> None:
            signal.raise_signal(signal.SIGTERM)

        def close(self) -> None:
            closed_with.append([signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])
            super().close()

    monkeypatch.setattr(served, "Sandbox", Told)
    # Ignored, so that a benchmark that does not heed it does not end the tests.
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(KeyboardInterrupt), served.served({}):
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert closed_with == [[signal.SIG_IGN] * 3], "a second signal does not keep it from stopping everything"
