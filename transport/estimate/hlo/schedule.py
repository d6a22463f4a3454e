"""How much of each collective an HLO program hides, and how much another order could hide.

One stream computes, instruction after instruction in the program's order. One stream runs
collectives, one at a time in the order in which they start; XLA's default on GPUs is one stream of
collectives, too. A collective that computation waits for is exposed while it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from transport.estimate.hlo.text import Computation
from transport.estimate.times import difference_ns

# Pairs of an instruction and a collective that are looked at; more take too long and too much.
PAIRS_MAX = 1 << 29
BLOCK = 1 << 12  # instructions whose relations are unpacked at once


@dataclass(slots=True)
class Step:
    """A collective in one execution of its computation.

    begin, end: places of the instructions that start it and wait for it; the same: it is
    synchronous; end is None: nothing in this computation waits for it. exposed_ns: None then.
    independent_ns: computation that neither needs its result nor makes its input; None: not judged.
    """

    begin: int
    end: int | None
    time_ns: float
    exposed_ns: float | None = None
    independent_ns: float | None = None

    @property
    def hidden_ns(self) -> float | None:
        if self.exposed_ns is None:
            return None
        return max(difference_ns(self.time_ns, self.exposed_ns), 0.0)

    @property
    def hideable_ns(self) -> float | None:
        """How much of the exposed time another order could hide, at most."""
        if self.exposed_ns is None or self.hidden_ns is None or self.independent_ns is None:
            return None
        left_ns = max(difference_ns(self.independent_ns, self.hidden_ns), 0.0)
        return min(self.exposed_ns, left_ns)


@dataclass
class _Running:
    step: Step
    begin_ns: float
    end_ns: float
    waited_ns: float = 0.0


@dataclass
class _Streams:
    """now_ns: of computation. queue: collectives that may still run, as they started."""

    now_ns: float = 0.0
    free_ns: float = 0.0
    queue: deque[_Running] = field(default_factory=deque)

    def start(self, step: Step) -> _Running:
        begin_ns = max(self.now_ns, self.free_ns)
        self.free_ns = begin_ns + step.time_ns
        found = _Running(step, begin_ns, self.free_ns)
        self.queue.append(found)
        return found

    def wait(self, until_ns: float) -> None:
        """Computation waits; each collective that runs meanwhile is exposed for as long."""
        while self.queue and self.queue[0].begin_ns < until_ns:
            one = self.queue[0]
            shared_ns = min(one.end_ns, until_ns) - max(one.begin_ns, self.now_ns)
            one.waited_ns += max(shared_ns, 0.0)
            if one.end_ns > until_ns:
                break
            self.queue.popleft()
        self.now_ns = max(self.now_ns, until_ns)


def run(steps: Sequence[Step], costs_ns: Sequence[float]) -> None:
    """Sets exposed_ns of each step. costs_ns: the computation of each instruction."""
    starts: dict[int, list[Step]] = {}
    for step in steps:
        starts.setdefault(step.begin, []).append(step)
    streams = _Streams()
    begun: list[_Running] = []
    awaited: dict[int, list[_Running]] = {}
    for place, cost_ns in enumerate(costs_ns):
        for step in starts.get(place, ()):
            begun.append(streams.start(step))
            if step.end is not None:
                awaited.setdefault(step.end, []).append(begun[-1])
        for one in awaited.pop(place, ()):
            streams.wait(one.end_ns)
        streams.now_ns += cost_ns
    for one in begun:
        one.step.exposed_ns = None if one.step.end is None else one.waited_ns


def relate(
    steps: Sequence[Step], costs_ns: Sequence[float], computation: Computation
) -> float | None:
    """Sets independent_ns of each step; returns the computation that any step could run beside.

    Dependencies are those of data. Computations that an instruction calls count as a whole.
    None: too many instructions and steps.
    """
    count = len(computation.instructions)
    if count * len(steps) > PAIRS_MAX:
        return None
    if not steps:
        return 0.0
    related = _related(steps, computation)
    busy = [place for place in range(count) if costs_ns[place] > 0]
    width = -(-len(steps) // 8)
    dependent_ns = np.zeros(width * 8)
    any_ns = 0.0
    for first in range(0, len(busy), BLOCK):
        part = busy[first : first + BLOCK]
        packed = b"".join(related[place].to_bytes(width, "little") for place in part)
        rows = np.frombuffer(packed, np.uint8).reshape(len(part), width)
        bits = np.unpackbits(rows, axis=1, bitorder="little")
        part_ns = np.array([costs_ns[place] for place in part])
        dependent_ns += part_ns @ bits
        any_ns += float(part_ns[~bits[:, : len(steps)].all(axis=1)].sum())
    total_ns = sum(costs_ns)
    for step, own_ns in zip(steps, dependent_ns.tolist(), strict=False):
        step.independent_ns = max(difference_ns(total_ns, own_ns), 0.0)
    return any_ns


def _related(steps: Sequence[Step], computation: Computation) -> list[int]:
    """For each instruction, a bit for each step that it needs, or that needs it."""
    places = {one.name: place for place, one in enumerate(computation.instructions)}
    operands = [[places[name] for name in one.operands] for one in computation.instructions]
    own = [0] * len(operands)
    for number, step in enumerate(steps):
        own[step.begin] |= 1 << number
    needs = list(own)
    for place, names in enumerate(operands):
        for other in names:
            needs[place] |= needs[other]
    needed = list(own)
    for place in range(len(operands) - 1, -1, -1):
        for other in operands[place]:
            needed[other] |= needed[place]
    return [one | other for one, other in zip(needs, needed, strict=True)]
