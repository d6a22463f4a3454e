"""Finds policies by name: the shipped ones, and those that other packages register.

Other packages register policies as entry points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    "congestion.window.hpcc",
    "congestion.window.nscc",
    "congestion.window.poseidon",
    "congestion.window.powertcp",
    "congestion.window.strack",
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
    """A policy name is unknown or ambiguous, or its entry point does not give a policy."""


@dataclass(frozen=True)
class Entry:
    """A registered policy, and the package or module that registered it."""

    policy: Policy
    origin: str


@dataclass(frozen=True)
class Problem:
    """A registered policy that cannot be used by its name."""

    family: str  # empty if the policy could not be loaded
    name: str  # name of the policy, or of its entry point if it could not be loaded
    place: str
    text: str  # the reason and the remedy
    hidden: bool = False  # True: a shipped policy has the same name and is used instead


@dataclass(frozen=True)
class Registry:
    """Policies by (family, name), and the problems of policies that cannot be used."""

    entries: Mapping[tuple[str, str], Entry]
    problems: Sequence[Problem]

    def problems_of(self, family: str, name: str) -> list[Problem]:
        """The problems of the policies with a name; an empty `family` means any family."""
        return [
            one
            for one in self.problems
            if one.name == name and (not family or one.family in ("", family))
        ]


def _load(module: str, attribute: str = "POLICY") -> Policy:
    try:
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # another package's module may raise anything
        words = " ".join(str(error).split())
        raise RegistryError(
            f"{module}:{attribute} cannot be loaded: {type(error).__name__}: {words}"
        ) from error
    if not isinstance(found, Policy):
        raise RegistryError(f"{module}:{attribute} is not a policy but a {type(found).__name__}")
    return found


def _place(point: EntryPoint) -> str:
    distribution = point.dist.name if point.dist else "unknown distribution"
    return f"{point.module} ({distribution})"


def _load_installed(point: EntryPoint) -> Entry:
    distribution = point.dist.name if point.dist else "unknown distribution"
    try:
        policy = _load(point.module, point.attr or "POLICY")
    except RegistryError as error:
        raise RegistryError(
            f"the entry point {point.name!r} of {distribution}: {error}; "
            f"repair {distribution} or uninstall it"
        ) from error
    return Entry(policy, _place(point))


def shipped() -> list[Entry]:
    return [Entry(_load(module), module) for module in SHIPPED]


def installed() -> tuple[list[Entry], list[Problem]]:
    """The policies that other distributions registered, and the problems of loading them."""
    entries, problems = [], []
    points = entry_points(group=ENTRY_POINT_GROUP)
    for point in sorted(points, key=lambda point: (point.value, point.name)):
        try:
            entries.append(_load_installed(point))
        except RegistryError as error:
            problems.append(Problem("", point.name, _place(point), str(error)))
    return entries, problems


def merged(own: Iterable[Entry], others: Iterable[Entry]) -> Registry:
    """Merges the shipped policies with those of other packages.

    A shipped policy takes precedence. A name that two other packages register is a problem.
    """
    by_name = {(entry.policy.family.name, entry.policy.name): entry for entry in own}
    shipped_names = set(by_name)
    problems: list[Problem] = []
    refused: dict[tuple[str, str], list[str]] = {}
    for entry in others:
        family, name = key = (entry.policy.family.name, entry.policy.name)
        if key in shipped_names:
            text = (
                f"the {family} policy {name!r} is weft's own ({by_name[key].origin}), not that of "
                f"{entry.origin}: rename or uninstall that one, or name it by its file"
            )
            problems.append(Problem(family, name, entry.origin, text, hidden=True))
        elif key in by_name:
            refused.setdefault(key, [by_name[key].origin]).append(entry.origin)
        else:
            by_name[key] = entry
    for (family, name), places in refused.items():
        del by_name[family, name]
        text = (
            f"{len(places)} {family} policies are named {name!r}, from {' and '.join(places)}: "
            "uninstall all but one, or name one by its file"
        )
        problems.append(Problem(family, name, " and ".join(places), text))
    return Registry(by_name, problems)


def survey() -> Registry:
    """All registered policies, and the problems of those that cannot be used."""
    entries, broken = installed()
    found = merged(shipped(), entries)
    return Registry(found.entries, [*broken, *found.problems])


def policies() -> Mapping[tuple[str, str], Entry]:
    """All registered policies that can be used."""
    return survey().entries


def find(family: str, name: str) -> Policy:
    """The policy of that family and name; raises RegistryError if it cannot be used."""
    known = survey()
    if family not in FAMILIES:
        raise RegistryError(f"no policy family {family!r}: there are {', '.join(sorted(FAMILIES))}")
    if (family, name) in known.entries:
        return known.entries[family, name].policy
    for problem in known.problems_of(family, name):
        raise RegistryError(problem.text)
    names = ", ".join(sorted(n for f, n in known.entries if f == family))
    raise RegistryError(f"no {family} policy {name!r}: there are {names}")
