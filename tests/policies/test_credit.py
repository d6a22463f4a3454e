"""Decides what the credit policies do: how much they grant, to whom, and when they look again.

Never touches the compiler: runs them interpreted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congestion.registry import find

from .rig import SEGMENT, Rig


def demand(rig: Rig, **fields: float) -> Mapping[str, Any]:
    return rig.call("on_demand", **({"now_ns": 10**9, "active_flows": 1} | fields))


def test_grant__shares_the_window_and_never_takes_back() -> None:
    rig = Rig(find("credit", "grant"))
    assert demand(rig, demand_bytes=1 << 30)["granted_bytes"] == 4 << 20
    assert demand(rig, demand_bytes=1 << 30, active_flows=4)["granted_bytes"] == 1 << 20
    kept = demand(rig, demand_bytes=1 << 30, active_flows=4, granted_bytes=2 << 20)
    assert kept["granted_bytes"] == 2 << 20
    assert kept["next_tick_ns"] > 10**9
    crowd = demand(rig, demand_bytes=1 << 30, active_flows=10**6)
    assert crowd["granted_bytes"] == 4 * SEGMENT


def test_grant__gives_no_more_than_was_asked_for() -> None:
    answer = demand(Rig(find("credit", "grant")), demand_bytes=5_000)
    assert answer == {"granted_bytes": 5_000, "next_tick_ns": -1}


def test_grant__marks_shrink_the_window_and_their_absence_restores_it() -> None:
    rig = Rig(find("credit", "grant"))
    for step in range(20):
        marked = demand(rig, now_ns=10**9 + step * 10**6, demand_bytes=1 << 30, ecn_segments=1)
    assert marked["granted_bytes"] == 1 << 20
    for step in range(40):
        calm = demand(rig, now_ns=2 * 10**9 + step * 10**6, demand_bytes=1 << 30)
    assert calm["granted_bytes"] == 4 << 20
