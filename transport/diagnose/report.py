"""Formats a diagnosis as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.finding import Finding
from transport.sim.units import time_text


def looked_at(found: Diagnosis) -> str:
    """One line that says how many ranks and iterations were judged."""
    return f"{found.ranks} ranks, {found.iterations} iterations of {time_text(found.iteration_ns)}"


def lines_of(one: Finding, folder: str) -> list[str]:
    """The text of one finding; a suspicion is marked as one."""
    head = "" if one.certain else "suspicion: "
    side = f" ({one.place.side} side)" if one.place.side else ""
    lines = [f"{head}{one.kind}: {one.place.name}{side}, confidence {one.confidence:.0%}"]
    if one.place.candidates:
        lines.append(f"  cannot be told from: {', '.join(one.place.candidates)}")
    return [
        *lines,
        f"  what:     {one.meaning}",
        f"  evidence: {one.evidence}",
        f"  for:      {time_text(one.to_ns - one.from_ns)}, until {one.to_ns} ns",
        f"  query:    weft trace query {folder} {one.query!r}",
        f"  do:       {one.advice}",
    ]


def as_json(found: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON."""
    return {
        "healthy": found.healthy, "findings": [json_of(one) for one in found.findings],
        "ranks": found.ranks, "iterations": found.iterations, "iteration_ns": found.iteration_ns,
        "notes": list(found.notes),
    }  # fmt: skip


def json_of(one: Finding) -> dict[str, Any]:
    """A finding as JSON; docs/DIAGNOSIS.md lists the fields."""
    made: dict[str, Any] = _plain(asdict(one) | {"class": one.kind, "meaning": one.meaning})
    return made


def _plain(value: Any) -> Any:
    """The value with types that JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value
