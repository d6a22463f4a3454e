"""What weft counts, and where it can be read."""

from transport.telemetry.counters import CounterRow, markdown, stub, table

__all__ = ["CounterRow", "markdown", "stub", "table"]
