"""HTML pages of results: one file each, which needs no other file and no network."""

from transport.pages.page import (
    Table,
    as_it_is,
    as_json,
    plot,
    rendered,
    script_of,
)

__all__ = [
    "Table",
    "as_it_is",
    "as_json",
    "plot",
    "rendered",
    "script_of",
]
