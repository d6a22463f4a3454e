"""Adds to findings where their ranks are, by an inventory: rack, GPU, NIC and switch port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.finding import Finding, Place
from transport.trace.inventory import UNKNOWN, Inventory, Spot
from transport.trace.store import Store

HOSTS_NAMED = 4  # hosts of a place of many ranks that its name lists
SPOTS_MAX = 1024  # ranks of a place that its JSON lists


def hosts_of(store: Store) -> list[tuple[int, str]]:
    """Each rank with a trace, and the host that it ran on, if that is known."""
    sql = "SELECT rank, host FROM processes WHERE rank >= 0 AND host <> '' ORDER BY process"
    return [(int(rank), str(host)) for rank, host in store.rows(sql)]


def located(found: Diagnosis, inventory: Inventory, hosts: Mapping[int, str]) -> Diagnosis:
    """The diagnosis with the places of its findings. hosts: rank -> host, as the trace tells."""
    findings = tuple(_located(one, inventory, hosts) for one in found.findings)
    notes = (*found.notes, *inventory.moved(hosts.items()))
    return replace(found, findings=findings, notes=notes)


def spot_of(inventory: Inventory, rank: int, hosts: Mapping[int, str]) -> Spot:
    host = hosts.get(rank, "")
    beside = [one for one, other in hosts.items() if other == host] if host else []
    return inventory.spot(rank, host, beside)


def _located(one: Finding, inventory: Inventory, hosts: Mapping[int, str]) -> Finding:
    place = one.place
    ranks = [rank for rank in place.ranks[:SPOTS_MAX] if rank >= 0]
    spots = [spot_of(inventory, rank, hosts) for rank in ranks]
    if not spots:
        return one
    told = tuple(spot.as_json() for spot in spots)
    return replace(one, place=replace(place, inventory=told, shown=_shown(place, spots)))


def _shown(place: Place, spots: list[Spot]) -> str:
    first = spots[0]
    if place.kind == "nic" and len(spots) == 1:
        return f"NIC {_nics(first)[0]} of rank {first.rank} {first.text}{_nics(first)[1]}"
    if place.kind in ("gpu", "host"):  # its name has the host
        return f"{place.name}, rack {first.rack}"
    if place.kind == "pair" and len(spots) == 2:
        return " to ".join(f"rank {one.rank} {one.text}" for one in spots)
    if len(spots) == 1:
        gpu = "" if first.gpu == UNKNOWN else f", GPU {first.gpu}"
        return f"{place.name} {first.text}{gpu}"
    where = list(dict.fromkeys(f"{one.host}, rack {one.rack}" for one in spots))
    more = f"; and {len(where) - HOSTS_NAMED} more hosts" if where[HOSTS_NAMED:] else ""
    return f"{place.name} on {'; '.join(where[:HOSTS_NAMED])}{more}"


def _nics(spot: Spot) -> tuple[str, str]:
    """The NIC of a rank, and its port. Several that the rank may use are named without ports."""
    if len(spot.nics) == 1:
        return spot.nics[0].name, f", {spot.nics[0].text}"
    return " or ".join(one.name for one in spot.nics) or UNKNOWN, ""
