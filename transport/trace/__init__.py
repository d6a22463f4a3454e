"""Traces: what processes recorded of their operations, channels and messages."""

from transport.trace.segment import Record, Segment, TraceError, read_segment

__all__ = ["Record", "Segment", "TraceError", "read_segment"]
