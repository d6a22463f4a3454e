"""Makes programs of training steps: computations, collectives, sends and receives.

Every rank runs the same operations in each step. A host launches them one after the other; its GPU
runs the operations of a stream in order, as CUDA does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transport.ground.text import nearest
from transport.sim import faults
from transport.sim.network import Array
from transport.sim.program import RECEIVE, SEND, Operation, Program, Wait, build
from transport.sim.work import BadWorkError, Job, ranks_of

COLLECTIVES = {
    "all_reduce_ring": ("AllReduce", "RING"),
    "all_reduce_double_tree": ("AllReduce", "TREE"),
    "all_gather": ("AllGather", "RING"),
    "all_gather_pat": ("AllGather", "PAT"),
    "reduce_scatter": ("ReduceScatter", "RING"),
    "reduce_scatter_pat": ("ReduceScatter", "PAT"),
    "broadcast": ("Broadcast", "RING"),
    "reduce": ("Reduce", "RING"),
    "all_to_all": ("AllToAll", ""),
}
ROOTED = ("broadcast", "reduce")
MESSAGES = {"send": SEND, "receive": RECEIVE}
COMPUTING, NETWORK = "compute", "network"  # streams of computations and of all other operations
OPERATIONS_MAX = 1 << 20


@dataclass(frozen=True)
class Step:
    """One operation of a step, as in the scenario."""

    name: str
    keys: Mapping[str, Any]
    groups: Sequence[Array]  # the ranks of each communicator
    communicator: int  # number of the first group's communicator; a computation has none


def job(
    ranks: int,
    keys: Mapping[str, Any],
    chance: np.random.Generator | None = None,
    found: Sequence[Mapping[str, Any]] = (),
) -> Job:
    """The job of a [[workload]] of pattern "steps"; BadWorkError if a key is wrong.

    chance: random generator for the noise of computations. found: the scenario's [[faults]].
    """
    steps = faults.in_program(_noisy(program(ranks, keys), keys, chance), found)
    made, unmatched = build(steps)
    if unmatched:
        raise BadWorkError("operations", _without_other_end(steps, unmatched))
    return made


def _noisy(made: Program, keys: Mapping[str, Any], chance: np.random.Generator | None) -> Program:
    """The program with its computation times multiplied by random noise, if the keys ask for it."""
    if not keys["noise"] or chance is None:
        return made
    noisy = []
    for one in made.operations:
        if one.compute_ns is not None:
            factors = np.exp(chance.normal(0, keys["noise"], len(one.ranks)))
            spent = np.round(one.compute_ns * factors).astype(np.int64)
            one = replace(one, compute_ns=spent)
        noisy.append(one)
    return replace(made, operations=noisy)


def _without_other_end(steps: Program, unmatched: Sequence[tuple[int, int]]) -> str:
    """Says which send has no receive, or which receive no send; `unmatched` is as from `build`."""
    index, member = unmatched[0]
    one = steps.operations[index]
    assert one.peers is not None
    rank, peer = int(one.ranks[member]), int(one.peers[member])
    what, other, way = (
        ("send", "receive", "to") if one.function == SEND else ("receive", "send", "from")
    )
    more = len(unmatched) - 1
    too = f", and {more:,} more sends and receives lack their other end" if more else ""
    return (
        f"{one.name}: the {what} of rank {rank} {way} rank {peer} has no {other}{too}: give each "
        f"{what} a {other} with shift {abs(peer - rank)}"
    )


def program(ranks: int, keys: Mapping[str, Any]) -> Program:
    """The program of all steps; BadWorkError if a key is wrong."""
    steps = _steps(ranks, keys["operations"])
    total = keys["repeats"] * sum(len(one.groups) for one in steps)
    if total > OPERATIONS_MAX:
        raise BadWorkError(
            "repeats", f"{total:,} operations, at most {OPERATIONS_MAX:,}: use fewer repeats"
        )
    slow = np.ones(ranks)
    for rank in keys["slow_ranks"]:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
            raise BadWorkError("slow_ranks", f"{rank!r}: ranks are 0 to {ranks - 1}")
        slow[rank] = keys["slow_factor"]
    made: list[Operation] = []
    last: dict[str, Array] = {}  # stream -> [rank]: index of the rank's latest operation in it
    for number in range(keys["repeats"]):
        named: dict[str, Array] = {}  # name -> [rank]: index of the rank's operation in this step
        for step in steps:
            if number < step.keys["offset"] or (number - step.keys["offset"]) % step.keys["every"]:
                continue
            here = np.full(ranks, -1)
            before = _before(step, steps, named, last, ranks)
            for at, group in enumerate(step.groups):
                here[group] = len(made)
                made.append(_operation(step, at, group, before, slow, number))
            # A rank that is in no group, as the last rank of a send, keeps its latest operation.
            stream = step.keys["stream"]
            kept = last.get(stream, np.full(ranks, -1))
            last[stream] = np.where(here >= 0, here, kept)
            named[step.name] = here
    return Program(ranks, made, keys["launch_ns"], keys["sync"])


def _before(
    step: Step,
    steps: Sequence[Step],
    named: Mapping[str, Array],
    last: Mapping[str, Array],
    ranks: int,
) -> list[Array]:
    """Arrays with, for each rank, an operation that the step's operation waits for; -1: none."""
    none = np.full(ranks, -1)
    found = [last.get(step.keys["stream"], none)]
    after = step.keys["after"]
    if after is None:
        # As in PyTorch, communication waits for the computation before it.
        return [*found, last.get(COMPUTING, none)] if step.keys["compute_ns"] is None else found
    for name in [after] if isinstance(after, str) else after:
        earlier = [one.name for one in steps[: steps.index(step)]]
        if isinstance(name, str) and name in earlier and name not in named:
            continue  # that operation does not run in this step (its offset or every)
        if not isinstance(name, str) or name not in named:
            raise BadWorkError("operations", f"{step.name}: {_why_not_after(step, steps, name)}")
        found.append(named[name])
    return found


def _why_not_after(step: Step, steps: Sequence[Step], name: object) -> str:
    """Why an operation cannot wait for the one that its `after` names."""
    if name == step.name:
        return "after: it cannot wait for itself: name an earlier operation"
    if name in [one.name for one in steps]:
        return f"after: {name!r} comes later in the list: move one of the two"
    earlier = [one.name for one in steps[: steps.index(step)]]
    told = nearest(str(name), earlier) if earlier else "; it is the first one: remove its after"
    return f"no operation {name!r} comes before it{told}"


def _operation(
    step: Step, at: int, group: Array, before: Sequence[Array], slow: Array, number: int
) -> Operation:
    keys = step.keys
    zeros = np.zeros(len(group), np.int64)
    common: dict[str, Any] = {
        "name": step.name,
        "waits": [Wait(one[group], zeros) for one in before if (one[group] >= 0).any()],
        "communicator": step.communicator + at,
        "step": number,
    }
    if keys["compute_ns"] is not None:
        spent = np.round(keys["compute_ns"] * slow[group]).astype(np.int64)
        return Operation(ranks=group, compute_ns=spent, **common)
    name = keys["collective"]
    if name in MESSAGES:
        shift = keys["shift"] if name == "send" else -keys["shift"]
        return Operation(
            ranks=group,
            function=MESSAGES[name],
            peers=group + shift,
            size_bytes=keys["size_bytes"],
            hop_ns=keys["hop_ns"],
            **common,
        )
    function, algorithm = COLLECTIVES[name]
    return Operation(
        ranks=group,
        function=function,
        algorithm=algorithm,
        size_bytes=keys["size_bytes"],
        channels=keys["channels"],
        slices=keys["slices"],
        root=keys["root"],
        hop_ns=keys["hop_ns"],
        **common,
    )


def _steps(ranks: int, operations: Sequence[Mapping[str, Any]]) -> list[Step]:
    if not operations:
        raise BadWorkError(
            "operations",
            'missing: give some, as [{compute_ns = "1 ms"}, {collective = "all_reduce_ring"}]',
        )
    found: list[Step] = []
    communicators: dict[tuple[Any, ...], int] = {}
    numbered = 0  # communicators so far
    for number, keys in enumerate(operations):
        name = keys["name"] or f"operation {number}"
        if any(one.name == name for one in found):
            raise BadWorkError("operations", f"{name}: two operations have this name: rename one")
        collective = keys["collective"]
        if (keys["compute_ns"] is None) == (collective is None):
            raise BadWorkError("operations", f"{name}: give either compute_ns or collective")
        groups = _groups(ranks, keys, name)
        if collective in ROOTED and keys["root"] >= len(groups[0]):
            last = len(groups[0]) - 1
            text = f"{name}: root {keys['root']}: ranks of its communicator are 0 to {last}"
            raise BadWorkError("operations", text)
        is_message = collective in MESSAGES  # all sends and receives share a communicator
        members = str(keys["ranks"]), keys["group_ranks"], keys["across"]
        shape = (is_message,) if is_message else members
        first = communicators.get(shape, numbered)
        if collective is not None and shape not in communicators:
            communicators[shape] = numbered
            numbered += 1 if is_message else len(groups)
        if keys["stream"] is None:
            keys = {**keys, "stream": COMPUTING if collective is None else NETWORK}
        found.append(Step(name, keys, groups, first))
    return found


def _groups(ranks: int, keys: Mapping[str, Any], name: str) -> list[Array]:
    """The ranks of each communicator of an operation."""
    everyone = np.arange(ranks)
    if keys["ranks"] is not None:
        try:
            everyone = ranks_of(keys["ranks"], ranks, least=1, what="rank")
        except BadWorkError as error:
            raise BadWorkError("operations", f"{name}: ranks: {error.text}") from None
    if keys["collective"] in MESSAGES:
        return [_with_other_end(ranks, everyone, keys, name)]
    size = keys["group_ranks"]
    if keys["compute_ns"] is not None or (size is None and keys["ranks"] is None):
        return [everyone]
    size = size or len(everyone)
    if size > len(everyone) or len(everyone) % size:
        raise BadWorkError(
            "operations", f"{name}: group_ranks {size}: must divide the {len(everyone)} ranks"
        )
    grid = everyone.reshape(-1, size)
    groups = list(grid.T if keys["across"] else grid)
    if len(groups[0]) < 2:
        what = "across" if keys["across"] else "group_ranks" if keys["group_ranks"] else "ranks"
        raise BadWorkError("operations", f"{name}: {what}: a group needs at least 2 ranks")
    return groups


def _with_other_end(ranks: int, members: Array, keys: Mapping[str, Any], name: str) -> Array:
    """The ranks of a send or receive whose other end exists."""
    shift = keys["shift"]
    if not 0 < abs(shift) < ranks:
        text = f"{name}: shift {shift}: must be from 1 to {ranks - 1}, or as much below 0"
        raise BadWorkError("operations", text)
    others = members + (shift if keys["collective"] == "send" else -shift)
    exists = (others >= 0) & (others < ranks)
    if keys["ranks"] is not None and not exists.all():
        rank, other = int(members[~exists][0]), int(others[~exists][0])
        text = f"{name}: shift {shift}: rank {rank} has no rank {other}: ranks are 0 to {ranks - 1}"
        raise BadWorkError("operations", text)
    return np.asarray(members[exists])
