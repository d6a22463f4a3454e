"""Chooses the first port of a job, if more ports were probed than the job will have.

Four ports at each end make 16 pairs, and often none of them leads over some spine. Other ports of
the same number may have one for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transport.plan.assign import Assigned, AssignError, assign
from transport.plan.routes import Routes


def bases_of(routes: Routes, count: int) -> list[int]:
    """First ports of ranges of `count` ports that were all probed, one range after the other."""
    every = {port for pair in routes.ports.values() for port in pair}
    found, at = [], min(every, default=0)
    while every and at <= max(every):
        whole = all(port in every for port in range(at, at + count))
        found += [at] if whole else []
        at += count if whole else 1
    return found


def narrowed(routes: Routes, base: int, count: int) -> Routes:
    """The routes whose ports are both in the range."""
    ports = {
        key: pair for key, pair in routes.ports.items()
        if key in routes.of and all(base <= port < base + count for port in pair)
    }  # fmt: skip
    return replace(routes, of={key: routes.of[key] for key in ports}, ports=ports)


def assign_ports(
    routes: Routes, demand: Mapping[tuple[str, str], int], *, paths: int, engines: int = 1,
    **more: Any,
) -> tuple[int | None, Assigned]:  # fmt: skip
    """What assign() does, with the base whose busiest link carries least; None: routes have none.

    more: the other arguments of assign().
    """
    every = {port for pair in routes.ports.values() for port in pair}
    bases = bases_of(routes, paths * engines)
    if len(every) <= paths * engines or not bases:
        return min(every, default=None), assign(
            routes, demand, paths=paths, engines=engines, **more
        )
    best: tuple[int | None, Assigned] | None = None
    error: AssignError | None = None
    for base in bases:
        try:
            some = narrowed(routes, base, paths * engines)
            made = assign(some, demand, paths=paths, engines=engines, **more)
        except AssignError as problem:  # not all pairs were probed with these ports
            error = error or problem
            continue
        if best is None or made.busiest_bytes < best[1].busiest_bytes:
            best = base, made
    if best is None:
        assert error is not None
        raise error
    return best
