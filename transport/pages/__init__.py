"""HTML pages of results: one file each, which needs no other file and no network."""

from transport.pages.page import (
    INSTALL,
    Table,
    as_it_is,
    as_json,
    installed,
    plot,
    rendered,
    script_of,
)

__all__ = [
    "INSTALL",
    "Table",
    "as_it_is",
    "as_json",
    "installed",
    "plot",
    "rendered",
    "script_of",
]
