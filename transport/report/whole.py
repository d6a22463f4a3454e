"""Makes the page of a trace, and reduces its matrices until the page is small enough."""

from __future__ import annotations

from dataclasses import replace

from transport.report.cells import CELLS_BYTES_MAX, shown
from transport.report.content import Options, Progress, content_of
from transport.report.page import PAGE_BYTES_MAX, page
from transport.report.section import Source
from transport.trace.store import Store

CELLS_BYTES_MIN = 1_000


def report_of(
    store: Store,
    options: Options,
    source: Source,
    command: str,
    progress: Progress = lambda what, share: None,
    live: str = "",
) -> str:
    """The page of the trace in a store, of at most PAGE_BYTES_MAX bytes in UTF-8.

    TraceError if the tables of the store cannot be read.
    """
    content = content_of(store, options, progress)
    most = CELLS_BYTES_MAX
    while True:
        text = page(content, source, command, live)
        if len(text.encode()) <= PAGE_BYTES_MAX or most < CELLS_BYTES_MIN or not content.matrices:
            return text
        most //= 4
        matrices = shown(store, options.routes, options.inventory, most)
        content = replace(content, matrices=tuple(matrices))
