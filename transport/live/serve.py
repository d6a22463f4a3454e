"""Metrics as text: once, or over HTTP until a signal."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable

from transport.live.exporter import Exporter
from transport.live.signals import Signals


def text(exporter: Exporter) -> str:
    """The metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    return generate_latest(registry).decode()


def serve(exporter: Exporter, host: str, port: int, serving: Callable[[int], None]) -> int:
    """Serves until SIGINT or SIGTERM, and returns that signal; OSError if it cannot listen there.

    port 0 is any free one. serving: called with the port once it is open.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    with Signals((signal.SIGINT, signal.SIGTERM)) as signals:
        server, thread = start_http_server(port, host, registry)
        try:
            serving(server.server_port)
            while not signals.came:
                select.select([signals.wakes], [], [])
                signals.clear()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        return signals.came[0]
