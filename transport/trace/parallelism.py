"""Guesses from the shape of a communicator which kind of parallelism uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

POINT_TO_POINT = {"Send", "Recv", "SendRecv"}
ALL_TO_ALL = {"AlltoAll", "AllToAll", "AlltoAllv"}
SHARDED = {"AllGather", "ReduceScatter"}
PEERS_OF_PIPELINES = 2  # a stage of a pipeline sends to the next and to the previous stage


def guess(
    members: Sequence[int],
    ranks: int,
    nodes: int | None,
    world: int,
    bytes_of: Mapping[str, float],
    peers: int,
) -> str:
    """The likely use of a communicator; "" if its shape tells nothing.

    members: ranks in the job of the communicator's processes, as far as known. world: number of
    ranks of the job. bytes_of: bytes by function. peers: the largest number of ranks to which
    one rank sends point to point.
    """
    total = sum(bytes_of.values())
    if ranks < 2 or total <= 0:
        return ""

    def share(functions: set[str]) -> float:
        return sum(bytes_of.get(one, 0) for one in functions) / total

    if share(ALL_TO_ALL) > 0.5:
        return "expert"
    if share(POINT_TO_POINT) > 0.5:
        return "pipeline" if peers <= PEERS_OF_PIPELINES else "expert"
    data = "sharded data" if share(SHARDED) > 0.5 else "data"
    if ranks >= world:
        return data
    ordered = sorted(members)
    steps = {b - a for a, b in pairwise(ordered)}
    if steps and min(steps) > 1:
        return data
    if nodes == 1 and steps == {1}:
        return "tensor"
    return ""
