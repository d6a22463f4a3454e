"""Reads states and counters of a row of a telemetry page."""

from transport.telemetry import Page, PeerRow, Row


def grown(before: int, now: int) -> int:
    """The growth of a counter; if it is smaller than before, it has restarted from zero."""
    return max(0, now - before if now >= before else now)


def paths_down(peer: PeerRow) -> int:
    """The number of a peer's paths that are not usable."""
    return sum(path.counters.get("usable", 1) == 0 for path in peer.paths)


def number(row: Row, name: str, absent: int = 0) -> int:
    """A state field of a row as a number; `absent` if it is missing or holds text."""
    value = row.state.get(name, absent)
    return value if isinstance(value, int) else absent


def age_ns(page: Page, row: Row, name: str) -> int | None:
    """Time in ns from the time in a state field until the page was read; None: it is 0 (never)."""
    at_ns = number(row, name)
    return max(0, page.read_ns - at_ns) if at_ns > 0 else None
