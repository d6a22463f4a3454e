"""Turns a scenario's [[faults]] into changes of links, routes and programs, and into hidden jobs.

Each fault is one that a cluster can have; docs/DIAGNOSIS.md says what weft diagnose must report for
it. Faults of programs apply to the first job that runs training steps; their `rank` is a rank of
this job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from transport.sim.errors import BadKeyError
from transport.sim.events import CHANGE, CHANGES_MAX
from transport.sim.network import Array, Network
from transport.sim.program import FOREVER_NS, Operation, Program
from transport.sim.schema import FAULT_KINDS

NETWORK = ("slow_nic", "lossy_link", "link_down", "flapping", "crash", "stopped_process")
PROGRAMS = ("straggler", "late_calls", "absent_rank", "wrong_call")
OF_RANKS = ("slow_nic", "crash", "stopped_process", *PROGRAMS)
OF_LINKS = ("lossy_link", "link_down", "flapping", "collision")

Keys = Mapping[str, Any]


TIMES, STEPS = {"at_ns", "until_ns"}, {"at_step", "until_step"}
# Kind of fault -> the keys that its [[faults]] table may have.
KEYS_OF = {
    "slow_nic": {"rank", "side", "rate_factor"} | TIMES,
    "lossy_link": {"link", "loss"} | TIMES,
    "link_down": {"link"} | TIMES,
    "flapping": {"link", "flap_ns"} | TIMES,
    "crash": {"rank", "at_ns"},
    "stopped_process": {"rank"} | TIMES,
    "straggler": {"rank", "compute_factor"} | STEPS,
    "late_calls": {"rank", "delay_ns"} | STEPS,
    "absent_rank": {"rank", "operation"} | STEPS,
    "wrong_call": {"rank", "operation", "calls", "size_bytes"} | STEPS,
    "collision": {"link"},
    "second_job": {"hosts", "size_bytes", "repeats", "at_ns"},
}


def check(faults: Sequence[Keys], given: Sequence[Keys]) -> None:
    """Raises BadKeyError for a fault without its rank, link or hosts, or with keys of other kinds.

    given: the same faults as the file has them, without defaults.
    """
    for number, (one, said) in enumerate(zip(faults, given, strict=True)):
        path: tuple[str | int, ...] = ("faults", number)
        kind = one["kind"]
        if kind is None:
            raise BadKeyError((*path, "kind"), f"missing: choose one of {', '.join(FAULT_KINDS)}")
        known = KEYS_OF[kind]
        for key in said:
            if key not in known and key != "kind":
                text = f"{kind} has no such key: it has {', '.join(sorted(known))}"
                raise BadKeyError((*path, key), text)
        if kind in OF_RANKS and one["rank"] is None:
            raise BadKeyError((*path, "rank"), f"missing: {kind} is a fault of a rank: give one")
        if kind in OF_LINKS and one["link"] is None:
            raise BadKeyError((*path, "link"), 'missing: name it, as link = "leaf0-spine1"')
        if kind == "second_job" and one["hosts"] is None:
            raise BadKeyError((*path, "hosts"), 'missing: give its hosts, as hosts = "8-15"')
        if one["until_ns"] is not None and one["until_ns"] <= one["at_ns"]:
            raise BadKeyError((*path, "until_ns"), f"must be later than at_ns = {one['at_ns']}")


@dataclass(frozen=True, eq=False)
class Silence:
    """A process that stopped or died: nothing of it is recorded from at_ns until until_ns.

    until_ns: when it resumes; None: it does not.
    """

    host: int
    at_ns: int
    dead: bool
    until_ns: int | None


def silences(faults: Sequence[Keys], hosts: Array) -> list[Silence]:
    """The processes that stop or die. hosts: the host of each rank."""
    return [
        Silence(int(hosts[one["rank"]]), one["at_ns"], one["kind"] == "crash", one["until_ns"])
        for one in faults
        if one["kind"] in ("crash", "stopped_process")
    ]


def port_changes(faults: Sequence[Keys], network: Network, hosts: Array, limit_ns: int) -> Array:
    """The changes of ports by faults of the network. hosts: the host of each rank."""
    rows: list[Array] = [np.zeros(0, CHANGE)]
    for number, one in enumerate(faults):
        if one["kind"] in NETWORK:
            ports = _ports(one, network, hosts, ("faults", number))
            rows += _changes(one, ports, network, limit_ns, ("faults", number))
    return np.concatenate(rows)


def _ports(one: Keys, network: Network, hosts: Array, path: tuple[str | int, ...]) -> Array:
    if one["kind"] in OF_LINKS:
        return links(network, one["link"], (*path, "link"))
    if one["rank"] >= len(hosts):
        raise BadKeyError((*path, "rank"), f"{one['rank']}: ranks are 0 to {len(hosts) - 1}")
    host = hosts[one["rank"]]
    out, into = network.ports["from"] == host, network.ports["to"] == host
    side = one["side"] if one["kind"] == "slow_nic" else "both"
    return np.flatnonzero({"send": out, "receive": into}.get(side, out | into))


def links(network: Network, names: str | Sequence[str], path: tuple[str | int, ...]) -> Array:
    """The ports of the links with these names; BadKeyError if there is none."""
    found = []
    for name in [names] if isinstance(names, str) else names:
        ports = network.find_ports(str(name))
        if not ports.size:
            there = ", ".join(network.link_examples()[:4])
            raise BadKeyError(path, f"{name!r}: no such link; links are {there}, ...")
        found.append(ports)
    return np.unique(np.concatenate(found))


def _changes(
    one: Keys, ports: Array, network: Network, limit_ns: int, path: tuple[str | int, ...]
) -> list[Array]:
    at_ns = one["at_ns"]
    until_ns = one["until_ns"]
    if one["kind"] == "flapping":
        end_ns = until_ns if until_ns is not None else limit_ns
        turns = max(-(-(end_ns - at_ns) // one["flap_ns"]), 0)
        if turns * len(ports) > CHANGES_MAX:
            raise BadKeyError((*path, "flap_ns"), f"flaps {turns:,} times: give a longer period")
        downs = at_ns + one["flap_ns"] * np.arange(turns)
        ups = np.minimum(downs + one["flap_ns"] // 2, end_ns)
        both = ((downs, 0), (ups, 1))
        return [_rows(ports, int(when), up=up) for times, up in both for when in times]
    value: dict[str, Any] = {"up": 0}
    back: dict[str, Any] = {"up": 1}
    if one["kind"] == "slow_nic":
        rates = network.ports["bytes_per_s"][ports]
        value = {"bytes_per_s": np.maximum(rates * one["rate_factor"], 1_000).astype(np.int64)}
        back = {"bytes_per_s": rates}
    elif one["kind"] == "lossy_link":
        value, back = {"loss": one["loss"]}, {"loss": network.ports["loss"][ports]}
    made = [_rows(ports, at_ns, **value)]
    return made if until_ns is None else [*made, _rows(ports, until_ns, **back)]


def _rows(ports: Array, at_ns: int, **values: Any) -> Array:
    made = np.zeros(len(ports), CHANGE)
    made["at_ns"], made["port"] = at_ns, ports
    made["up"], made["bytes_per_s"], made["loss"] = -1, -1, -1.0
    for name, value in values.items():
        made[name] = value
    return made


def with_collisions(network: Network, faults: Sequence[Keys]) -> Network:
    """The network with its faults of kind collision.

    If a collision names some of a switch's equal-cost links, the switch uses only those.
    """
    route = network.route
    sets = [network.set_of(at) for at in range(len(network.set_begin) - 1)]
    for number, one in enumerate(faults):
        if one["kind"] != "collision":
            continue
        kept = links(network, one["link"], ("faults", number, "link"))
        route = route.copy()
        for switch in np.unique(network.ports["from"][kept]).tolist():
            if switch < network.hosts:
                continue
            for group in range(network.groups):
                chosen = route[switch - network.hosts, group]
                left = np.intersect1d(sets[chosen], kept) if chosen >= 0 else kept[:0]
                if left.size and left.size < len(sets[chosen]):
                    sets.append(left.astype(network.set_ports.dtype))
                    route[switch - network.hosts, group] = len(sets) - 1
    if route is network.route:
        return network
    begins = np.concatenate([[0], np.cumsum([len(one) for one in sets])])
    return replace(
        network,
        route=route,
        set_begin=begins.astype(network.set_begin.dtype),
        set_ports=np.concatenate(sets),
    )


def second_jobs(faults: Sequence[Keys]) -> list[dict[str, Any]]:
    """A [[workload]] for each second job. Traces do not contain these jobs."""
    return [
        {
            "pattern": "permutation",
            "name": "second job",
            "hosts": one["hosts"],
            "size_bytes": one["size_bytes"],
            "repeats": one["repeats"],
            "start_ns": one["at_ns"],
        }
        for one in faults
        if one["kind"] == "second_job"
    ]


def place_of_second_job(faults: Sequence[Keys], number: int, key: str) -> tuple[str | int, ...]:
    """The path in [[faults]] of the key that gives second_jobs()[number] its value of `key`."""
    at = [each for each, one in enumerate(faults) if one["kind"] == "second_job"][number]
    key = "at_ns" if key == "start_ns" else key
    return ("faults", at, key if key in KEYS_OF["second_job"] else "kind")


@dataclass
class _Changed:
    """The parts of a program that faults change."""

    operations: list[Operation]
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    wrong: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)


def in_program(program: Program, faults: Sequence[Keys]) -> Program:
    """The program with the faults of its ranks; BadKeyError if a fault does not fit it."""
    changed = _Changed(list(program.operations))
    for number, one in enumerate(faults):
        path: tuple[str | int, ...] = ("faults", number)
        if one["kind"] not in PROGRAMS:
            continue
        if one["rank"] >= program.ranks:
            text = f"{one['rank']}: ranks are 0 to {program.ranks - 1}"
            raise BadKeyError((*path, "rank"), text)
        if one["kind"] != "straggler" and not program.launch_ns:
            text = f"{one['kind']} needs a job with launch_ns: set it, as launch_ns = 1_000"
            raise BadKeyError((*path, "kind"), text)
        if one["kind"] == "straggler":
            _slow(changed, one, path)
        else:
            _calls(changed, one, path)
    return replace(program, operations=changed.operations, held=changed.held, wrong=changed.wrong)


def _steps_of(one: Keys) -> tuple[int, float]:
    """The first step of a fault, and the one after its last."""
    return one["at_step"], float("inf") if one["until_step"] is None else one["until_step"]


def _slow(changed: _Changed, one: Keys, path: tuple[str | int, ...]) -> None:
    first, end = _steps_of(one)
    slowed = False
    for at, operation in enumerate(changed.operations):
        here = np.flatnonzero(operation.ranks == one["rank"])
        if operation.compute_ns is None or not first <= operation.step < end or not here.size:
            continue
        spent = operation.compute_ns.copy()
        spent[here] = np.round(spent[here] * one["compute_factor"]).astype(np.int64)
        changed.operations[at] = replace(operation, compute_ns=spent)
        slowed = True
    if not slowed:
        text = f"{first}: rank {one['rank']} computes in no step of the fault"
        raise BadKeyError((*path, "at_step"), text)


def _calls(changed: _Changed, one: Keys, path: tuple[str | int, ...]) -> None:
    """Delays a call of the rank, suppresses it, or replaces it by a call with other arguments."""
    first, end = _steps_of(one)
    rank = one["rank"]
    mine = [
        (at, operation)
        for at, operation in enumerate(changed.operations)
        if first <= operation.step < end and (operation.ranks == rank).any()
    ]
    called = [(at, each) for at, each in mine if each.function]
    if not called:
        raise BadKeyError(
            (*path, "at_step"), f"{first}: rank {rank} communicates in none of the fault's steps"
        )
    if one["kind"] == "late_calls":
        steps: set[int] = set()
        for at, operation in mine:
            if operation.step not in steps:
                changed.held[at, rank] = one["delay_ns"]
            steps.add(operation.step)
        return
    at, operation = called[min(one["operation"], len(called) - 1)]
    if one["kind"] == "absent_rank":
        changed.held[at, rank] = FOREVER_NS
        return
    other = one["calls"] or operation.function
    if other == operation.function and one["size_bytes"] == operation.size_bytes:
        raise BadKeyError(
            (*path, "size_bytes"),
            "the rank makes this very call without the fault: give another size or `calls`",
        )
    changed.wrong[at, rank] = (other, one["size_bytes"])
