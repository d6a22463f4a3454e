"""Assigns policies to the transfers of workloads that name policies of their own.

A transfer uses the policies of its connection: what its workload's `mix` or `policies` name, and
for other families those of the scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from congestion.api import FAMILIES
from transport.ground.text import nearest
from transport.sim import schema, work
from transport.sim.errors import BadKeyError
from transport.sim.network import Array

if TYPE_CHECKING:
    from transport.sim.scenario import Tables

Where = tuple[str | int, ...]
PLACE = 5  # tells the random numbers of shares from other uses of work.generator
SETS_MAX = 1_000


@dataclass(frozen=True, eq=False)
class Mix:
    """The policies that workloads name, and which transfers use them.

    sets: texts by family, in the order of the workloads and their mixes; families that a set lacks
    are those of the scenario. of_transfer: for each transfer the index of its set.
    """

    sets: list[dict[str, str]]
    of_transfer: Array

    @property
    def used(self) -> list[int]:
        """The sets that some transfer uses, in the order of their first transfers."""
        sets, first = np.unique(self.of_transfer, return_index=True)
        return [int(one) for one in sets[np.argsort(first)]] or [0]


def check_policies(table: Mapping[str, Any], path: Where) -> None:
    """Raises BadKeyError if the table names no family, or a policy that is no text."""
    for family, text in table.items():
        if family not in FAMILIES:
            known = f"no such policy family{nearest(family, list(FAMILIES))}"
            raise BadKeyError((*path, family), known)
        if not isinstance(text, str) or not text.strip():
            raise BadKeyError((*path, family), f'{text!r}: expected text, as "swift"')


def checked(found: Tables, path: Where) -> list[Tables]:
    """The tables of a workload's mix with defaults; raises BadKeyError for a wrong one."""
    check_policies(found["policies"], (*path, "policies"))
    tables = [
        schema.checked(one, schema.MIX, (*path, "mix", at), "a [[workload.mix]]")
        for at, one in enumerate(found["mix"])
    ]
    shares = 0.0
    for at, one in enumerate(tables):
        where = (*path, "mix", at)
        check_policies(one["policies"], (*where, "policies"))
        if not one["policies"]:
            text = 'missing: name a policy, as { window = "dctcp" }'
            raise BadKeyError((*where, "policies"), text)
        if (one["share"] is None) == (one["hosts"] is None):
            key, what = ("share", "both") if one["hosts"] is not None else ("share", "neither")
            raise BadKeyError((*where, key), f"give share or hosts; here are {what}")
        shares += one["share"] or 0.0
        if shares > 1 + 1e-9:
            text = f"the shares of this mix add up to {shares:.6g}, more than 1: lower one"
            raise BadKeyError((*where, "share"), text)
    return tables


def names_policies(keys: Tables) -> bool:
    """Whether some workload names policies of its own."""
    return any(one["policies"] or one["mix"] for one in keys["workload"])


def mix_of(keys: Tables, hosts: int, made: work.Work) -> Mix | None:
    """The sets of policies and their transfers; None if no workload names policies."""
    if not names_policies(keys):
        return None
    of_transfer = np.zeros(len(made.transfers), np.uint16)
    sets: list[dict[str, str]] = [{}]  # of hidden jobs, which name none
    for number, own in enumerate(keys["workload"]):
        mine = np.flatnonzero(made.transfers["job"] == number)
        base = dict(own["policies"])
        of_transfer[mine] = _number(sets, base)
        if not own["mix"]:
            continue
        others = [_number(sets, base | one["policies"]) for one in own["mix"]]
        ends = made.transfers[["from", "to", "stream"]][mine]
        connections, connection_of = np.unique(ends, return_inverse=True)
        chance = work.generator(keys["seed"], PLACE, number)
        where = ("workload", number, "mix")
        entry = _entries(own["mix"], connections["from"], hosts, chance, where)
        chosen = np.array([of_transfer[mine[0]] if len(mine) else 0, *others], np.uint16)
        of_transfer[mine] = chosen[entry[connection_of] + 1]
    return Mix(sets, of_transfer)


def _number(sets: list[dict[str, str]], wanted: dict[str, str]) -> int:
    if wanted not in sets:
        if len(sets) == SETS_MAX:
            raise BadKeyError(("workload",), f"more than {SETS_MAX - 1:,} sets of policies")
        sets.append(wanted)
    return sets.index(wanted)


def _entries(
    tables: Sequence[Tables], senders: Array, hosts: int, chance: np.random.Generator, where: Where
) -> Array:
    """For each connection the entry of the mix that it uses; -1: none.

    Entries with hosts choose first; the shares are of the connections that are left.
    """
    entry = np.full(len(senders), -1)
    for at, one in enumerate(tables):
        if one["hosts"] is None:
            continue
        try:
            mine = work.ranks_of(one["hosts"], hosts, least=1)
        except work.BadWorkError as error:
            raise BadKeyError((*where, at, "hosts"), error.text) from None
        taken = np.isin(senders, mine) & (entry < 0)
        if not taken.any():
            text = f"{one['hosts']!r}: no connection of this workload is left that begins there"
            raise BadKeyError((*where, at, "hosts"), text)
        entry[taken] = at
    shared = [at for at, one in enumerate(tables) if one["share"] is not None]
    free = chance.permutation(np.flatnonzero(entry < 0))
    ends = np.rint(np.cumsum([tables[at]["share"] for at in shared]) * len(free)).astype(int)
    for at, begin, end in zip(shared, [0, *ends], ends, strict=False):
        entry[free[begin:end]] = at
    return entry


def canonical(kept: Tables) -> Tables:
    """A scenario's keys such that the same policies of all transfers give the same keys.

    A policy that all workloads use becomes the scenario's, and keys that say nothing are left out.
    """
    own, jobs = dict(kept["policies"]), [dict(one) for one in kept["workload"]]
    hidden = any(one["kind"] == "second_job" for one in kept.get("faults", ()))
    for family in FAMILIES:
        texts = {one["policies"].get(family, own.get(family)) for one in jobs}
        texts |= {own.get(family)} if hidden else set()
        text = texts.pop()
        if not texts and text is not None:
            own[family] = text
    for one in jobs:
        base = own | one["policies"]
        mix = [mine | {"policies": _other(mine["policies"], base)} for mine in one.pop("mix")]
        named = _other(one.pop("policies"), own)
        one |= ({"policies": named} if named else {}) | ({"mix": mix} if mix else {})
    return kept | {"policies": own, "workload": jobs}


def _other(policies: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    return {family: text for family, text in policies.items() if base.get(family) != text}
