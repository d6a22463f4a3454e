"""Builds the transfers of collectives: rings, a tree, all-to-all, mixture of experts.

Bytes are counted as in nccl-tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transport.sim.network import Array
from transport.sim.work import (
    DEPENDENCIES_MAX,
    NO_WAITS,
    BadWorkError,
    Job,
    bounded,
    bounded_waits,
    transfers,
    waits,
)

BINARY_TREE = "BINARY_TREE"  # algorithm of a single tree; NCCL's TREE is two trees
DRAWS_MAX = 1 << 32  # limit of random numbers for tokens; 2^32 of them take some minutes

Keys = Mapping[str, Any]


def chunks(whole: int, parts: int) -> Array:
    """Splits `whole` into `parts` sizes that differ by at most one."""
    return np.array([whole // parts + (part < whole % parts) for part in range(parts)], np.uint64)


def _ring(ranks: int, steps: int, sizes: Array, repeats: int, gap_ns: int, back: bool) -> Job:
    """Transfers of a ring: at step s, rank r sends chunk (r - s) % ranks to its neighbour.

    Transfers are numbered by (repeat, step, rank). A rank sends the chunk that it received in the
    step before.
    """
    rank = np.arange(ranks)
    step = np.arange(steps)
    to = (rank - 1) % ranks if back else (rank + 1) % ranks
    come_from = (rank + 1) % ranks if back else (rank - 1) % ranks
    made = transfers(repeats * steps * ranks)
    shape = (repeats, steps, ranks)
    made["from"] = np.broadcast_to(rank, shape).ravel()
    made["to"] = np.broadcast_to(to, shape).ravel()
    piece = (rank[None, :] + (step if back else -step)[:, None]) % ranks
    made["bytes"] = np.broadcast_to(sizes[piece], shape).ravel()
    number = np.arange(len(made)).reshape(shape)
    within = waits(number[:, :-1][:, :, come_from].ravel(), number[:, 1:].ravel())
    # A rank begins the next repeat after it has received the last chunk of this repeat.
    between = waits(number[:-1, -1][:, come_from].ravel(), number[1:, 0].ravel(), gap_ns)
    return Job(made, np.concatenate([within, between]))


def _rings(ranks: int, keys: Keys, steps: int, function: str) -> Job:
    """Makes `channels` parallel rings, each with its part of the buffer."""
    channels, size = keys.get("channels", 1), keys["size_bytes"]
    bounded(channels * keys["repeats"] * steps * ranks)
    many, waiting, first = [], [], 0
    turn = np.repeat(np.arange(keys["repeats"]), steps * ranks)
    for channel, part in enumerate(chunks(size, channels).tolist()):
        one = _ring(
            *(ranks, steps, chunks(int(part), ranks), keys["repeats"], keys["gap_ns"]),
            back=channel % 2 == 1,
        )
        one.transfers["stream"] = channel
        for end in ("before", "after"):
            one.dependencies[end] += first
        first += len(one.transfers)
        many.append(one.transfers)
        waiting.append(one.dependencies)
    return Job(
        *(np.concatenate(many), np.concatenate(waiting), size, keys["repeats"]),
        *(function, "RING"),
        turn=np.tile(turn, channels),
    )


def all_reduce_ring(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """All-reduce on a ring: reduce-scatter, then all-gather; 2 (n - 1) steps."""
    return _rings(ranks, keys, 2 * (ranks - 1), "AllReduce")


def reduce_scatter(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """Reduce-scatter on a ring of n ranks: n - 1 steps."""
    return _rings(ranks, keys, ranks - 1, "ReduceScatter")


def all_gather(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """All-gather on a ring of n ranks: n - 1 steps."""
    return _rings(ranks, keys, ranks - 1, "AllGather")


def all_reduce_tree(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """All-reduce up a binary tree to rank 0 and down again, pipelined in slices.

    Transfers are numbered by (repeat, direction, slice, rank - 1): rank r > 0 sends to its parent
    (r - 1) // 2, then receives from it. A rank passes a slice up after all its children sent it.
    """
    slices, repeats = keys["slices"], keys["repeats"]
    child = np.arange(1, ranks)
    parent = (child - 1) // 2
    shape = (repeats, 2, slices, ranks - 1)
    made = transfers(int(np.prod(shape)))
    # ends[direction (up, down), end (from, to), link]: a rank.
    ends = np.stack([np.stack([child, parent]), np.stack([parent, child])])
    made["from"] = np.broadcast_to(ends[:, 0][None, :, None], shape).ravel()
    made["to"] = np.broadcast_to(ends[:, 1][None, :, None], shape).ravel()
    made["bytes"] = np.broadcast_to(
        chunks(keys["size_bytes"], slices)[None, None, :, None], shape
    ).ravel()
    number = np.arange(len(made)).reshape(shape)
    up, down = number[:, 0], number[:, 1]  # indices: repeat, slice, rank - 1
    inner = parent > 0  # mask of ranks whose parent is not the root
    top = ~inner
    found = [
        waits(up[:, :, inner].ravel(), up[:, :, parent[inner] - 1].ravel()),
        waits(down[:, :, parent[inner] - 1].ravel(), down[:, :, inner].ravel()),
    ]
    # The root sends a slice down after all its children sent it up.
    found += [
        waits(up[:, :, one].ravel(), down[:, :, other].ravel())
        for one in np.flatnonzero(top)
        for other in np.flatnonzero(top)
    ]
    if repeats > 1:
        # A rank begins the next repeat after it received the last slice of this repeat. Only leaves
        # need this dependency: inner ranks and the root wait for their children anyway.
        last, leaf = down[:-1, -1], up[1:, 0]
        found.append(waits(last.ravel(), leaf.ravel(), keys["gap_ns"]))
    turn = np.repeat(np.arange(repeats), len(made) // repeats)
    size = keys["size_bytes"]
    waiting = np.concatenate(found)
    return Job(made, waiting, size, repeats, "AllReduce", BINARY_TREE, turn=turn)


def all_to_all(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """All-to-all: in round i, rank r sends to rank r + i; `window` rounds may be in flight.

    Transfers are numbered by (repeat, round, rank).
    """
    repeats, rounds = keys["repeats"], ranks - 1
    window = min(keys["window"], rounds)
    shape = (repeats, rounds, ranks)
    rank, turn = np.arange(ranks), np.arange(1, ranks)
    made = transfers(int(np.prod(shape)))
    made["from"] = np.broadcast_to(rank, shape).ravel()
    made["to"] = np.broadcast_to((rank[None, :] + turn[:, None]) % ranks, shape).ravel()
    parts = chunks(keys["size_bytes"], ranks)
    made["bytes"] = parts[made["to"]]
    number = np.arange(len(made)).reshape(shape)
    bounded_waits((repeats + window * (repeats - 1)) * rounds * ranks)
    found = [waits(number[:, :-window].ravel(), number[:, window:].ravel())]
    if repeats > 1:
        # A rank begins the next repeat after it received from all ranks; in round i, rank r
        # receives from rank r - i. Only its first `window` sends need this dependency, because
        # later sends wait for the first ones.
        source = (rank[None, :] - turn[:, None]) % ranks
        got = np.take_along_axis(number[:-1], np.broadcast_to(source, number[:-1].shape), axis=2)
        for first in range(window):
            after = np.broadcast_to(number[1:, first][:, None, :], got.shape)
            found.append(waits(got.ravel(), after.ravel(), keys["gap_ns"]))
    turn = np.repeat(np.arange(repeats), len(made) // repeats)
    size = keys["size_bytes"]
    waiting = np.concatenate(found)
    return Job(made, waiting, size, repeats, "AllToAll", turn=turn)


def moe(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """Mixture of experts: tokens go to the ranks of their experts (dispatch) and back (combine).

    The number of tokens from each rank to each expert is random. Tokens for a rank's own experts
    are not sent.
    """
    experts = keys["experts"] or ranks
    if experts % ranks:
        text = f"{experts} experts: give a multiple of the {ranks} ranks"
        raise BadWorkError("experts", text)
    if keys["top_k"] > experts:
        raise BadWorkError("top_k", f"{keys['top_k']}: give at most {experts}, the expert count")
    if ranks * experts * keys["repeats"] > DRAWS_MAX or ranks * experts > DEPENDENCIES_MAX:
        text = f"{ranks:,} ranks x {experts:,} experts x {keys['repeats']:,} repeats are too many"
        raise BadWorkError("experts", text)
    back_bytes = keys["combine_token_bytes"] or 2 * keys["token_bytes"]
    popular = chance.permutation(np.arange(1, experts + 1) ** -float(keys["skew"]))
    popular /= popular.sum()
    found, parts, first = [NO_WAITS], [], 0
    turns = []
    # The previous repeat's combine: its transfers, and the rank that receives each of them.
    last: tuple[Array, Array] | None = None
    for repeat in range(keys["repeats"]):
        drawn = chance.multinomial(keys["tokens"] * keys["top_k"], popular, ranks)
        tokens = drawn.reshape(ranks, ranks, -1).sum(axis=2)
        np.fill_diagonal(tokens, 0)
        one, other = np.nonzero(tokens)
        count = len(one)
        bounded(first + 2 * count)
        made = transfers(2 * count)
        made["from"], made["to"] = np.concatenate([one, other]), np.concatenate([other, one])
        sent = tokens[one, other]
        made["bytes"] = np.concatenate([sent * keys["token_bytes"], sent * back_bytes])
        there, back = first + np.arange(count), first + count + np.arange(count)
        if last is not None:
            found.append(_all(last[0], last[1], there, one, keys["gap_ns"]))
        if keys["wait"] == "each":
            found.append(waits(there, back, keys["compute_ns"]))
        else:
            found.append(_all(there, other, back, other, keys["compute_ns"]))
        last = (back, one)
        parts.append(made)
        turns.append(np.repeat([2 * repeat, 2 * repeat + 1], count))
        first += 2 * count
        bounded_waits(sum(map(len, found)))
    return Job(
        *(np.concatenate(parts), np.concatenate(found), 0, keys["repeats"]),
        "AllToAll",
        turn=np.concatenate(turns),
    )


def _all(before: Array, ends: Array, after: Array, begins: Array, delay_ns: int) -> Array:
    """Makes each transfer of `after` wait for all transfers of `before` to the rank that sends it.

    ends: the receivers of `before`. begins: the senders of `after`.
    """
    wide = np.bincount(ends, minlength=int(begins.max(initial=0)) + 1)
    order = np.argsort(ends, kind="stable")
    start = np.concatenate([[0], np.cumsum(wide)])
    counts = wide[begins]
    total = int(counts.sum())
    if total > DEPENDENCIES_MAX:
        text = (
            f"{total:,} dependencies: at most {DEPENDENCIES_MAX:,}; use fewer hosts or "
            'wait = "each"'
        )
        raise BadWorkError("wait", text)
    shift = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = order[np.repeat(start[begins], counts) + shift]
    return waits(before[chosen], np.repeat(after, counts), delay_ns)
