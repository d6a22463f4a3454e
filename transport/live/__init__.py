"""Rates, and what processes wait for, from two readings of telemetry pages."""

from transport.live.rates import (
    ConnectionRates,
    EngineRates,
    PathRates,
    PeerRates,
    ProcessRates,
    Traffic,
    rates,
)
from transport.live.reading import Facts, Reading, read
from transport.live.waiting import REASONS, Wait

__all__ = [
    "REASONS",
    "ConnectionRates",
    "EngineRates",
    "Facts",
    "PathRates",
    "PeerRates",
    "ProcessRates",
    "Reading",
    "Traffic",
    "Wait",
    "rates",
    "read",
]
