"""Tests that a policy gets the same random events with or without a helper process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from congestion.registry import find
from transport.compiler import cache, cached_policy, emit
from transport.compiler.library import jit
from transport.compiler.source import load
from transport.conformance import Settings, check_policy
from transport.conformance.portions import Portions

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"


def portions(events: int, helpers: int) -> Portions:
    policy = find("path", "mixed")
    return Portions(policy, {"compiled": jit(policy)}, 5, events, helpers=helpers)


def test_portions__one_process_or_two_compare_the_same_events() -> None:
    trials = []
    for helpers in (0, 1):
        with portions(12_000, helpers) as rest:
            trials.append(rest.trial())
    assert trials[0].as_json() == trials[1].as_json()
    assert trials[0].events >= 12_000
    assert trials[0].wrong == []


def test_portions__a_helper_that_dies_leaves_nothing_out() -> None:
    with portions(12_000, 1) as rest:
        os.kill(rest._helper.pid, signal.SIGKILL)
        assert rest.trial().events >= 12_000


def test_check__leaves_the_library_that_runs_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy = load(EXAMPLE)
    assert check_policy(policy, Settings(2_000, quick=True)).passed

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the policy was compiled twice")

    monkeypatch.setattr(emit, "build", never)
    assert cached_policy(EXAMPLE).parent == cache.directory()


def test_check__needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert check_policy(load(EXAMPLE), Settings(2_000, quick=True)).passed
