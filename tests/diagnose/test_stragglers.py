"""Tests how much time a straggler is said to cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.lib.diagnosis_jobs import Job
from transport.diagnose.diagnosis import judged
from transport.diagnose.facts import facts_of
from transport.diagnose.measures import lateness_of
from transport.diagnose.settings import Settings
from transport.diagnose.windows import judged_windows_of
from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace
from transport.trace import open_store

RANK, FROM_STEP, STEPS = 5, 4, 8


@pytest.mark.parametrize("shape", ["sharded", "pipeline"])
def test_straggler__costs_what_iterations_became_longer(tmp_path: Path, shape: str) -> None:
    """In these jobs some operations of a rank begin at once, after the same computation."""
    tables = Job(shape, 32, 3).tables(STEPS)
    tables["faults"] = [{"kind": "straggler", "rank": RANK, "at_step": FROM_STEP}]
    write_trace(run(from_tables(tables, file="job"), trace_ns=500_000), tmp_path)
    with open_store(tmp_path) as store:
        facts = facts_of(store)
    windows = judged_windows_of(facts)
    lasted_ns = np.diff(windows.starts_ns)
    longer_ns = lasted_ns - np.median(lasted_ns[:FROM_STEP])
    own_ns = lateness_of(facts, windows).own[:-1, RANK]
    # The last two steps that are whole: the first one with the fault has time to spare.
    share = own_ns[-2:].sum() / longer_ns[-2:].sum()
    assert 0.8 < share < 1.2

    (found,) = judged(facts, [], Settings(use_paths=False), []).findings
    assert (found.kind, found.place.name) == ("non_communication_slow", f"rank {RANK}")
    assert found.lost_ns is not None
    # The finding has all windows that show it, not only the three that show it best.
    assert found.lost_ns >= int(own_ns.sum())
    assert found.lost_ns <= found.to_ns - found.from_ns
