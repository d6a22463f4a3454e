"""Traces: what processes recorded of their operations, channels and messages."""

from transport.trace.layout import TraceError
from transport.trace.segment import Record, Segment, read_segment

__all__ = ["Record", "Segment", "TraceError", "read_segment"]
