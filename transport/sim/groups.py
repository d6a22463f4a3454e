"""Groups the transfers of a scenario by the policies that they use, and loads these policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from congestion.api import FAMILIES, Policy
from transport import native
from transport.errors import InvalidArgumentError
from transport.policies.choice import OneSet, PolicyName, choose, labels, resolve, short_text, split
from transport.sim.errors import ScenarioError
from transport.sim.network import Array
from transport.sim.scenario import Scenario
from transport.sim.settings import DEFAULT_POLICIES, beside

BETWEEN = " + "  # joins the policies of several groups in a text


@dataclass(frozen=True)
class Group:
    """Transfers with the same policies.

    label: the policies in which it differs from other groups. policies, sources: by family the
    policy as it was named, and what source_of says. choices: the same policies, to load them.
    """

    label: str
    policies: dict[str, str]
    sources: dict[str, str]
    choices: dict[str, PolicyName]


def groups_of(
    scenario: Scenario, given: Mapping[str, PolicyName]
) -> tuple[tuple[Group, ...], Array]:
    """The groups of a scenario, and for each transfer the index of its group.

    given: policies that replace those of [policies]; workloads keep the policies that they name.
    """
    _known(given)
    own = {**DEFAULT_POLICIES, **scenario.keys["policies"]}
    base = {
        family: given[family] if family in given else beside(scenario, str(own[family]))
        for family in {**own, **given}
    }
    names = {family: _text(policy) for family, policy in {**own, **given}.items()}
    mix = scenario.mix
    if mix is None:
        count = len(scenario.work.transfers)
        return (_group("", names, base),), np.zeros(count, np.uint16)
    _refuse_unused(given, [mix.sets[number] for number in mix.used])
    found: list[Group] = []
    group_of_set = np.zeros(len(mix.sets), np.uint16)
    for number in mix.used:
        mine = mix.sets[number]
        loaded = {family: beside(scenario, text) for family, text in mine.items()}
        made = _group("", names | mine, base | loaded)
        same = [at for at, one in enumerate(found) if one.sources == made.sources]
        group_of_set[number] = same[0] if same else len(found)
        if not same:
            found.append(made)
    groups = _labelled(found)
    group_of = group_of_set[mix.of_transfer]
    _refuse_shared_credit(scenario, groups, group_of)
    return groups, group_of


def _known(given: Mapping[str, PolicyName]) -> None:
    for family in given:
        if family not in FAMILIES:
            raise InvalidArgumentError(
                f"no policy family {family!r}: choose one of {', '.join(sorted(FAMILIES))}"
            )


def _text(policy: PolicyName) -> str:
    return policy.name if isinstance(policy, Policy) else str(policy)


def _group(label: str, names: dict[str, str], choices: dict[str, PolicyName]) -> Group:
    sources = {family: source_of(family, policy) for family, policy in choices.items()}
    return Group(label, names, sources, choices)


def _refuse_unused(given: Mapping[str, PolicyName], sets: Sequence[Mapping[str, str]]) -> None:
    for family in given:
        if all(family in one for one in sets):
            raise InvalidArgumentError(
                f"the {family} policy {_text(given[family])} would be used by no transfer, because "
                f"every workload names its own {family} policy: leave one of them out"
            )


def _labelled(found: Sequence[Group]) -> tuple[Group, ...]:
    short = labels(
        [{family: short_text(text) for family, text in one.policies.items()} for one in found]
    )
    if len(set(short)) < len(found):
        short = labels([one.policies for one in found])
    return tuple(replace(one, label=text) for one, text in zip(found, short, strict=True))


def _refuse_shared_credit(scenario: Scenario, groups: Sequence[Group], group_of: Array) -> None:
    """Refuses one credit policy with different parameters at a host.

    At a receiver, all flows with a credit policy share its record of the NIC port.
    """
    ends = scenario.work.transfers
    for at, one in enumerate(groups):
        for number, other in enumerate(groups[:at]):
            mine, its = (group.sources.get("credit", "none") for group in (one, other))
            if mine == its or mine.partition(":")[0] != its.partition(":")[0]:
                continue
            mine_at, its_at = (
                np.union1d(ends["from"][group_of == each], ends["to"][group_of == each])
                for each in (at, number)
            )
            both = np.intersect1d(mine_at, its_at)
            if both.size:
                name = scenario.network.node_names[int(both[0])]
                raise ScenarioError(
                    f"{scenario.file}: the credit policies {one.policies['credit']} and "
                    f"{other.policies['credit']} meet at {name}, where flows of one credit policy "
                    "share its record of the port: give both the same parameters, or other hosts"
                )


def joined(groups: Sequence[Group], what: str) -> dict[str, str]:
    """By family the policies (what = "policies") or sources of all groups, each once."""
    families = {family: None for group in groups for family in getattr(group, what)}
    return {
        family: BETWEEN.join(
            dict.fromkeys(getattr(group, what).get(family, "none") for group in groups)
        )
        for family in families
    }


def load_into(plan: native.FabricPlan, groups: Sequence[Group], group_of: Array) -> None:
    """Gives a plan the policies of all groups. group_of: for each transfer of the plan."""
    for number, group in enumerate(groups):
        chooser = OneSet(plan, number)
        if number and group.sources.get("credit", "none") == "none":
            chooser.choose_text("credit", "none", [])  # a set begins as a copy of the first group
        for family, policy in group.choices.items():
            choose(chooser, family, policy, {})
    if len(groups) > 1:
        plan.set_policy_sets(group_of)


def source_of(family: str, policy: PolicyName) -> str:
    """The digest of a policy's source, and its parameters as given."""
    name, _, values = split(resolve(family, policy))
    if name == "none":
        return "none"
    library = Path(name) if "/" in name else native.POLICY_DIRECTORY / f"{family}_{name}.so"
    if not library.is_file():
        # A policy that is linked into the extension, such as `fixed`, has no library.
        return f"{name}:{values}"
    from transport.compiler.library import load as load_library

    digest = bytes(load_library(library).descriptor.source_sha256).decode()
    return f"{digest}:{values}" if values else digest
