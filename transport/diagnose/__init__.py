"""Finds which rank, NIC or path of a job is slow or hung, from its trace (docs/DIAGNOSIS.md)."""

from __future__ import annotations

from transport.diagnose.alive import settled_ns
from transport.diagnose.diagnosis import Diagnosis, baseline, diagnose, lost_time
from transport.diagnose.evidence import Answer
from transport.diagnose.finding import CLASSES, Finding, Place
from transport.diagnose.settings import Settings

__all__ = [
    "CLASSES",
    "Answer",
    "Diagnosis",
    "Finding",
    "Place",
    "Settings",
    "baseline",
    "diagnose",
    "lost_time",
    "settled_ns",
]
