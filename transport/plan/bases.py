"""Chooses the first port of a job, if more ports were probed than the job will have.

Four ports at each end make 16 pairs of ports, and often ECMP sends none of them over some spine.
Four other ports may have a pair for every spine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from transport.plan.assign import Assigned, AssignError, assign
from transport.plan.routes import Routes

SHARED = "another job in the plan has the same ports: run one at a time, or probe more --ranges"


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
        key: pair
        for key, pair in routes.ports.items()
        if key in routes.of and all(base <= port < base + count for port in pair)
    }
    return replace(routes, of={key: routes.of[key] for key in ports}, ports=ports)


def ports_of(routes: Routes) -> dict[str, set[int]]:
    """Host (or its NIC, as host0/left) -> its ports that were probed."""
    found: dict[str, set[int]] = {}
    for (source, target, _), (near, far) in routes.ports.items():
        found.setdefault(source, set()).add(near)
        found.setdefault(target, set()).add(far)
    return found


def assign_ports(
    routes: Routes,
    demand: Mapping[tuple[str, str], int],
    *,
    paths: int,
    engines: int = 1,
    taken: Collection[tuple[str, int]] = (),
    **more: Any,
) -> tuple[int | None, Assigned]:
    """The port base whose busiest link carries least, and the assignment with it.

    taken: addresses and ports of other jobs; a range with such a port is used only if no range is
    free. more: the other arguments of assign(). The base is None if the routes have no ports, or if
    the first port differs between hosts.
    """
    count, of = paths * engines, ports_of(routes)
    for host, ports in of.items():
        if len(ports) <= count and max(ports) - min(ports) >= count:
            raise AssignError(
                f"the {len(ports)} ports of {host} that were probed are not next to "
                f"each other: weft plan probe --ports {count}"
            )
    if all(len(ports) <= count for ports in of.values()):
        made = assign(routes, demand, paths=paths, engines=engines, **more)
        ends = {
            (address, port)
            for pair in made.pairs
            for near, far in pair.ports
            for address, port in ((pair.source_address, near), (pair.target_address, far))
        }
        if ends & set(taken):
            made = replace(made, notes=(*made.notes, SHARED))
        first = {min(ports) for ports in of.values()}
        return first.pop() if len(first) == 1 else None, made
    if len({frozenset(ports) for ports in of.values()}) > 1:
        raise AssignError(
            "hosts were probed with different ports: give all the same --port-base, "
            "--ports and --ranges, or no more ports than the job has"
        )
    bases = bases_of(routes, count)
    if not bases:
        raise AssignError(
            f"no {count} ports next to each other were probed, as {paths} paths of "
            f"{engines} engines need: weft plan probe --ports {count}"
        )
    return _best(routes, demand, bases, set(taken), {"paths": paths, "engines": engines, **more})


def _best(
    routes: Routes,
    demand: Mapping[tuple[str, str], int],
    bases: list[int],
    taken: set[tuple[str, int]],
    shape: dict[str, Any],
) -> tuple[int, Assigned]:
    count = shape["paths"] * shape["engines"]
    free = [
        base
        for base in bases
        if not any(
            (address, port) in taken
            for address in routes.addresses.values()
            for port in range(base, base + count)
        )
    ]
    best: tuple[int, Assigned] | None = None
    error: AssignError | None = None
    for base in free or bases:
        try:
            made = assign(narrowed(routes, base, count), demand, **shape)
        except AssignError as problem:  # not all pairs were probed with these ports
            error = error or problem
            continue
        if best is None or made.busiest_bytes < best[1].busiest_bytes:
            best = base, made
    if best is None:
        assert error is not None
        raise error
    return best if free else (best[0], replace(best[1], notes=(*best[1].notes, SHARED)))
