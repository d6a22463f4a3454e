"""Traces: what processes recorded of their operations, channels and messages."""

from transport.trace.layout import TraceError
from transport.trace.matrix import Filters, Matrix, matrix_of
from transport.trace.profile import Profile, profile_of
from transport.trace.segment import Record, Segment, read_segment
from transport.trace.store import Store, TraceExtraError, new_store, open_store

__all__ = [
    "Filters",
    "Matrix",
    "Profile",
    "Record",
    "Segment",
    "Store",
    "TraceError",
    "TraceExtraError",
    "matrix_of",
    "new_store",
    "open_store",
    "profile_of",
    "read_segment",
]
