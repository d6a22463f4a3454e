"""Turns a scenario's [[events]] into a list of port changes, sorted by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transport.sim.errors import BadKeyError
from transport.sim.network import Array, Network
from transport.sim.work import generator

# Same layout as PortChange in native/sim/fabric/fabric_plan.h. A negative value means no change.
CHANGE = np.dtype(
    [
        *(("at_ns", np.int64), ("port", np.uint32), ("up", np.int32)),
        *(("bytes_per_s", np.int64), ("loss", np.float64)),
    ]
)
CHANGES_MAX = 1 << 20


def ports_of(network: Network, given: str | Sequence[Any], path: tuple[str | int, ...]) -> Array:
    """The ports that the link names match; BadKeyError if a name matches none."""
    names = [given] if isinstance(given, str) else list(given)
    found = []
    for name in names:
        ports = network.find_ports(str(name))
        if ports.size == 0:
            there = ", ".join(network.link_examples()[:4])
            raise BadKeyError(path, f"{name!r}: no such link; links are {there}, ...")
        found.append(ports)
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _picked(
    network: Network,
    ports: Array,
    count: int,
    chance: np.random.Generator,
    path: tuple[str | int, ...],
) -> Array:
    """The ports of `count` links that are chosen at random among the links of `ports`."""
    ends = np.sort(np.stack([network.ports["from"][ports], network.ports["to"][ports]], 1), axis=1)
    _, link = np.unique(ends, axis=0, return_inverse=True)
    there = int(link.max()) + 1
    if count > there:
        raise BadKeyError((*path, "pick"), f"{count}: only {there} links match: lower it")
    chosen = chance.permutation(there)[:count]
    return ports[np.isin(link.ravel(), chosen)]


def changes(network: Network, events: Sequence[Mapping[str, Any]], seed: int) -> Array:
    """All port changes in order of time."""
    rows: list[Array] = []
    for number, event in enumerate(events):
        path: tuple[str | int, ...] = ("events", number)
        if event["link"] is None:
            raise BadKeyError((*path, "link"), 'missing: name one, as link = "leaf0-spine0"')
        ports = ports_of(network, event["link"], (*path, "link"))
        if event["pick"] is not None:
            ports = _picked(network, ports, event["pick"], generator(seed, 3, number), path)
        rows += _event(network, ports, event, path)
        if sum(len(one) for one in rows) > CHANGES_MAX:
            raise BadKeyError(
                path, f"more than {CHANGES_MAX:,} changes: use fewer links or slower flapping"
            )
    made = np.concatenate(rows) if rows else np.zeros(0, CHANGE)
    return made[np.argsort(made["at_ns"], kind="stable")]


def _event(
    network: Network, ports: Array, event: Mapping[str, Any], path: tuple[str | int, ...]
) -> list[Array]:
    at_ns, until_ns, flap_ns = event["at_ns"], event["until_ns"], event["flap_ns"]
    if until_ns is not None and until_ns <= at_ns:
        raise BadKeyError((*path, "until_ns"), f"{until_ns}: must be later than at_ns = {at_ns}")
    if flap_ns is not None:
        if until_ns is None:
            raise BadKeyError((*path, "flap_ns"), "flapping has no end: give until_ns")
        if any(event[one] is not None for one in ("up", "rate", "loss")):
            raise BadKeyError(
                (*path, "flap_ns"), "cannot be combined with `up`, `rate` or `loss`: remove them"
            )
        turns = -(-(until_ns - at_ns) // flap_ns)
        if turns * len(ports) > CHANGES_MAX:
            raise BadKeyError((*path, "flap_ns"), f"flaps {turns:,} times: give a longer period")
        down = at_ns + flap_ns * np.arange(turns)
        up = np.minimum(down + flap_ns // 2, until_ns)
        return [_rows(ports, at, up=state) for when, state in ((down, 0), (up, 1)) for at in when]
    if all(event[one] is None for one in ("up", "rate", "loss")):
        raise BadKeyError(path, "has no effect: set `up`, `rate`, `loss` or `flap_ns`")
    made = [
        _rows(
            ports,
            at_ns,
            up=-1 if event["up"] is None else int(event["up"]),
            bytes_per_s=-1 if event["rate"] is None else event["rate"],
            loss=-1.0 if event["loss"] is None else event["loss"],
        )
    ]
    if until_ns is not None:
        back = _rows(ports, until_ns, up=-1 if event["up"] is None else int(not event["up"]))
        if event["rate"] is not None:
            back["bytes_per_s"] = network.ports["bytes_per_s"][ports]
        if event["loss"] is not None:
            back["loss"] = network.ports["loss"][ports]
        made.append(back)
    return made


def _rows(
    ports: Array, at_ns: int, *, up: int = -1, bytes_per_s: int = -1, loss: float = -1.0
) -> Array:
    made = np.zeros(len(ports), CHANGE)
    made["at_ns"], made["port"], made["up"] = at_ns, ports, up
    made["bytes_per_s"], made["loss"] = bytes_per_s, loss
    return made
