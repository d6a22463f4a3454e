"""Counters: their table and documentation, and telemetry pages in shared memory."""

from transport.telemetry.counters import CounterRow, markdown, quantile, stub, table
from transport.telemetry.page import Page, PageError, PeerRow, Row, directory, pages, read_page

__all__ = [
    "CounterRow",
    "Page",
    "PageError",
    "PeerRow",
    "Row",
    "directory",
    "markdown",
    "pages",
    "quantile",
    "read_page",
    "stub",
    "table",
]
