"""Decides which policy a name means: the shipped ones and those of the entry-point group.

Never touches a compiled library, and gives shipped policies no right that others lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from congestion.api import FAMILIES, Policy

ENTRY_POINT_GROUP = "weft.policies"

SHIPPED: tuple[str, ...] = (
    "congestion.window.fixed",
    "congestion.window.aimd",
    "congestion.window.bbr",
    "congestion.window.cubic",
    "congestion.window.dcqcn",
    "congestion.window.dctcp",
    "congestion.window.nscc",
    "congestion.window.swift",
    "congestion.window.timely",
    "congestion.credit.fixed",
    "congestion.credit.eqds",
    "congestion.credit.grant",
    "congestion.credit.rccc",
    "congestion.paths.fixed",
    "congestion.paths.bitmap",
    "congestion.paths.flowlet",
    "congestion.paths.mixed",
    "congestion.paths.oblivious",
    "congestion.paths.plb",
    "congestion.paths.power_of_two",
    "congestion.paths.reps",
    "congestion.paths.round_robin",
    "congestion.paths.single",
    "congestion.paths.weighted",
    "congestion.loss.fixed",
    "congestion.loss.go_back_n",
    "congestion.loss.rack",
    "congestion.loss.selective",
    "congestion.loss.sleek",
)


class RegistryError(ValueError):
    """A name that is taken twice, is not there, or does not lead to a policy."""


@dataclass(frozen=True)
class Entry:
    """One registered policy and the place that registered it."""

    policy: Policy
    origin: str


def _load(module: str, attribute: str = "POLICY") -> Policy:
    try:
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        words = " ".join(str(error).split())
        raise RegistryError(
            f"{module}:{attribute} cannot be loaded: {type(error).__name__}: {words}"
        ) from error
    if not isinstance(found, Policy):
        raise RegistryError(f"{module}:{attribute} is no policy but a {type(found).__name__}")
    return found


def _load_installed(point: EntryPoint) -> Entry:
    distribution = point.dist.name if point.dist else "unknown distribution"
    try:
        policy = _load(point.module, point.attr or "POLICY")
    except RegistryError as error:
        raise RegistryError(
            f"the entry point {point.name!r} of {distribution}: {error}; "
            f"repair {distribution} or uninstall it"
        ) from error
    return Entry(policy, f"{point.module} ({distribution})")


def shipped() -> list[Entry]:
    return [Entry(_load(module), module) for module in SHIPPED]


def installed() -> list[Entry]:
    """What other distributions registered."""
    return [
        _load_installed(point)
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.value)
    ]


def table(entries: Iterable[Entry]) -> Mapping[tuple[str, str], Entry]:
    """By (family, name), each name once."""
    by_name: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        key = (entry.policy.family.name, entry.policy.name)
        if key in by_name:
            raise RegistryError(
                f"two {key[0]} policies are named {key[1]!r}: one from {by_name[key].origin}, "
                f"one from {entry.origin}"
            )
        by_name[key] = entry
    return by_name


def policies() -> Mapping[tuple[str, str], Entry]:
    """All registered policies."""
    return table([*shipped(), *installed()])


def find(family: str, name: str) -> Policy:
    """The policy of that family and name; an error that lists what there is."""
    known = policies()
    if family not in FAMILIES:
        raise RegistryError(f"no policy family {family!r}: there are {', '.join(sorted(FAMILIES))}")
    if (family, name) not in known:
        names = ", ".join(sorted(n for f, n in known if f == family))
        raise RegistryError(f"no {family} policy {name!r}: there are {names}")
    return known[family, name].policy
