"""Counters: their table and documentation, and telemetry pages in shared memory."""

from transport.telemetry.counters import CounterRow, markdown, quantile, stub, table
from transport.telemetry.page import (
    ForeignPageError,
    Page,
    PageError,
    PagesRead,
    PeerRow,
    Row,
    directory,
    pages,
    read_page,
    read_pages,
)

__all__ = [
    "CounterRow",
    "ForeignPageError",
    "Page",
    "PageError",
    "PagesRead",
    "PeerRow",
    "Row",
    "directory",
    "markdown",
    "pages",
    "quantile",
    "read_page",
    "read_pages",
    "stub",
    "table",
]
