"""Metrics as text: once, or over HTTP until a signal."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable

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
    with Signals((signal.SIGINT, signal.SIGTERM)) as signals:
        with served(exporter, host, port, who) as at:
            serving(at)
            while not signals.came:
                select.select([signals.wakes], [], [])
                signals.clear()
        return signals.came[0]
