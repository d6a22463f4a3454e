"""Builds the transfers of Broadcast, Reduce, the double binary tree and PAT, as NCCL runs them.

Sources: the volumes of section "Algorithms" of NCCL's documentation; the double binary tree after
Sanders, Speck and Traeff (Parallel Computing 35, 2009); PAT after NCCL 2.23. Bytes are
counted as in nccl-tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transport.sim.collectives import chunks
from transport.sim.network import Array
from transport.sim.work import NO_WAITS, BadWorkError, Job, bounded, transfers, waits

Keys = Mapping[str, Any]


def _turn(count: int, repeats: int) -> Array:
    return np.repeat(np.arange(repeats), count // repeats)


def _root(ranks: int, keys: Keys) -> int:
    root = int(keys["root"])
    if root >= ranks:
        raise BadWorkError("root", f"{root}: ranks are 0 to {ranks - 1}")
    return root


def _chain(order: Array, keys: Keys, function: str) -> Job:
    """Sends the buffer along a chain of ranks, in pipelined slices.

    Transfers are numbered by (repeat, slice, hop). The first rank begins the next repeat after its
    neighbour has received the last slice.
    """
    slices, repeats = keys["slices"], keys["repeats"]
    hops = len(order) - 1
    shape = (repeats, slices, hops)
    bounded(repeats * slices * hops)
    made = transfers(repeats * slices * hops)
    made["from"] = np.broadcast_to(order[:-1], shape).ravel()
    made["to"] = np.broadcast_to(order[1:], shape).ravel()
    sizes = chunks(keys["size_bytes"], slices)
    made["bytes"] = np.broadcast_to(sizes[None, :, None], shape).ravel()
    number = np.arange(len(made)).reshape(shape)
    within = waits(number[:, :, :-1].ravel(), number[:, :, 1:].ravel())
    between = [
        waits(number[:-1, -1, 0], number[1:, slice_, 0], keys["gap_ns"])
        for slice_ in range(slices if repeats > 1 else 0)
    ]
    waiting = np.concatenate([within, *between])
    turn = _turn(len(made), repeats)
    root, size = keys["root"], keys["size_bytes"]
    return Job(made, waiting, size, repeats, function, "RING", root, turn)


def broadcast(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """Broadcast on a ring: the buffer goes from the root once around, to all but the root."""
    order = (_root(ranks, keys) + np.arange(ranks)) % ranks
    return _chain(order, keys, "Broadcast")


def reduce(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """Reduce on a ring: from the rank after the root, once around to the root."""
    order = (_root(ranks, keys) + 1 + np.arange(ranks)) % ranks
    return _chain(order, keys, "Reduce")


def binary_tree(ranks: int) -> Array:
    """The parent of each rank in NCCL's binary tree, whose root is rank 0; -1: the root."""
    parent = np.full(ranks, -1, np.int64)
    for rank in range(1, ranks):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parent[rank] = up if up < ranks else rank ^ bit
    return parent


def second_tree(ranks: int) -> Array:
    """The second of the two trees: mirrored for an even number of ranks, else shifted by one."""
    first = binary_tree(ranks)
    if ranks % 2 == 0:
        mirrored = first[::-1]
        return np.where(mirrored < 0, -1, ranks - 1 - mirrored)
    shifted = np.roll(first, 1)
    return np.where(shifted < 0, -1, (shifted + 1) % ranks)


def _tree(parent: Array, sizes: Array, keys: Keys, stream: int) -> tuple[Array, Array]:
    """Transfers and dependencies of an all-reduce up and down one tree.

    Transfers are numbered by (repeat, direction, slice, rank), without the root.
    """
    repeats = keys["repeats"]
    child = np.flatnonzero(parent >= 0)
    root = int(np.flatnonzero(parent < 0)[0])
    above = parent[child]
    links, slices = len(child), len(sizes)
    shape = (repeats, 2, slices, links)
    made = transfers(int(np.prod(shape)))
    ends = np.stack([np.stack([child, above]), np.stack([above, child])])
    made["from"] = np.broadcast_to(ends[:, 0][None, :, None], shape).ravel()
    made["to"] = np.broadcast_to(ends[:, 1][None, :, None], shape).ravel()
    made["bytes"] = np.broadcast_to(sizes[None, None, :, None], shape).ravel()
    made["stream"] = stream
    number = np.arange(len(made)).reshape(shape)
    up, down = number[:, 0], number[:, 1]  # indices: repeat, slice, link
    link_of = np.full(len(parent), -1)
    link_of[child] = np.arange(links)
    inner = np.flatnonzero(above != root)  # links whose upper end is not the root
    top = np.flatnonzero(above == root)
    outer = link_of[above[inner]]
    found = [
        waits(up[:, :, inner].ravel(), up[:, :, outer].ravel()),
        waits(down[:, :, outer].ravel(), down[:, :, inner].ravel()),
        *(waits(up[:, :, one].ravel(), down[:, :, other].ravel()) for one in top for other in top),
    ]
    leaves = np.flatnonzero(~np.isin(child, above))
    if repeats > 1:
        for slice_ in range(slices):
            before, after = down[:-1, -1][:, leaves], up[1:, slice_][:, leaves]
            found.append(waits(before.ravel(), after.ravel(), keys["gap_ns"]))
    return made, np.concatenate(found)


def all_reduce_double_tree(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """All-reduce over two binary trees, each with half of the buffer.

    Every rank but two is an inner node of one tree and a leaf of the other.
    """
    slices, repeats = keys["slices"], keys["repeats"]
    bounded(4 * repeats * slices * (ranks - 1))
    halves = chunks(keys["size_bytes"], 2)
    many, waiting, turns, first = [], [], [], 0
    for stream, parent in enumerate((binary_tree(ranks), second_tree(ranks))):
        made, found = _tree(parent, chunks(int(halves[stream]), slices), keys, stream)
        for end in ("before", "after"):
            found[end] += first
        first += len(made)
        many.append(made)
        waiting.append(found)
        turns.append(_turn(len(made), repeats))
    whole, after, turn = np.concatenate(many), np.concatenate(waiting), np.concatenate(turns)
    size = keys["size_bytes"]
    return Job(whole, after, size, repeats, "AllReduce", "TREE", turn=turn)


def _pat(ranks: int, keys: Keys, distances: Sequence[int], forward: bool, function: str) -> Job:
    """One message of each rank for each distance, in the given order.

    A message of distance d carries the block of every offset s in 1 to n - 1 whose lowest set bit
    is d. It waits for all messages of earlier distances that its sender receives. Transfers are
    numbered by (repeat, distance, rank).
    """
    repeats = keys["repeats"]
    bounded(repeats * len(distances) * ranks)
    blocks = chunks(keys["size_bytes"], ranks).astype(np.int64)
    rank, offset = np.arange(ranks), np.arange(1, ranks)
    shape = (repeats, len(distances), ranks)
    made = transfers(int(np.prod(shape)))
    sizes = np.zeros(shape[1:], np.uint64)
    for step, distance in enumerate(distances):
        of = offset[(offset & -offset) == distance]
        # A message carries the blocks of the ranks that come `of - distance` ranks after its sender
        # in an all-gather, and after its receiver in a reduce-scatter.
        near = rank if not forward else (rank + distance) % ranks
        sizes[step] = blocks[(near[:, None] + (of - distance)[None, :]) % ranks].sum(axis=1)
    steps = np.array(distances)[:, None] * (1 if forward else -1)
    made["from"] = np.broadcast_to(rank, shape).ravel()
    made["to"] = np.broadcast_to((rank[None, :] + steps) % ranks, shape).ravel()
    made["bytes"] = np.broadcast_to(sizes, shape).ravel()
    number = np.arange(len(made)).reshape(shape)
    source = (rank[None, :] - steps) % ranks  # [distance, rank]: the rank from which it receives
    found = [NO_WAITS]
    for after in range(len(distances)):
        for before in range(after):
            got = number[:, before][:, source[before]]
            found.append(waits(got.ravel(), number[:, after].ravel()))
    if repeats > 1:
        for before in range(len(distances)):
            got = number[:-1, before][:, source[before]]
            found.append(waits(got.ravel(), number[1:, 0].ravel(), keys["gap_ns"]))
    waiting, size = np.concatenate(found), keys["size_bytes"]
    turn = _turn(len(made), repeats)
    return Job(made, waiting, size, repeats, function, "PAT", turn=turn)


def _powers(ranks: int) -> list[int]:
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def all_gather_pat(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """All-gather by PAT with one GPU a node: log2(n) steps, the longest distance first."""
    return _pat(ranks, keys, _powers(ranks)[::-1], False, "AllGather")


def reduce_scatter_pat(ranks: int, keys: Keys, chance: np.random.Generator) -> Job:
    """Reduce-scatter by PAT with one GPU a node: log2(n) steps, the shortest distance first."""
    return _pat(ranks, keys, _powers(ranks), True, "ReduceScatter")
