"""Metrics as text: once, or over HTTP until a signal; other servers until a signal, too."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

from transport.live.exporter import Exporter
from transport.live.http import Access, served
from transport.live.signals import Signals


def text(exporter: Exporter) -> str:
    """The metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    return generate_latest(registry).decode()


def serve(
    exporter: Exporter, host: str, port: int, who: Access, serving: Callable[[int], None]
) -> int:
    """Serves until SIGINT or SIGTERM, and returns that signal; OSError if it cannot listen there.

    port 0 is any free one. serving: called with the port once it is open.
    """
    return until_a_signal(served(exporter, host, port, who), serving)


def until_a_signal(server: AbstractContextManager[int], serving: Callable[[int], None]) -> int:
    """Runs a server of `transport.live.http` until SIGINT or SIGTERM, and returns that signal."""
    with Signals((signal.SIGINT, signal.SIGTERM)) as signals:
        with server as at:
            serving(at)
            while not signals.came:
                select.select([signals.wakes], [], [])
                signals.clear()
        return signals.came[0]
