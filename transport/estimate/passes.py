"""What the passes of a training step consist of, and where communication beside them begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from transport.estimate.collectives import Estimate
from transport.estimate.pipelines import BACKWARD, WEIGHTS
from transport.estimate.plan import Group
from transport.estimate.schedule import Task


@dataclass(frozen=True)
class Message:
    """One kind of communication of a GPU: each operation's bytes and time. kind: its purpose."""

    kind: str
    operation: str
    group: Group
    size_bytes: float
    each: Estimate


@dataclass(frozen=True)
class Pass:
    """What a pass of a chunk does in each layer.

    ns: its computation. sums: operations of tensor parallelism, and of experts. rings: how often
    keys and values go around the context parallel ranks.
    """

    kind: str
    ns: float
    sums: int
    rings: float

    @property
    def makes_gradients(self) -> bool:
        """Whether gradients of parameters are ready after it."""
        return self.kind in (BACKWARD, WEIGHTS)


@dataclass
class Reduced:
    """Gradients of a pass that are reduced. waiting_bytes: of the bucket that is not yet full.

    count: buckets so far. reduced: names of the tasks that reduce.
    """

    waiting_bytes: float
    count: int = 0
    reduced: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """Communication of a layer in ns: what runs beside its computation, and what it waits for."""

    beside_ns: float
    waited_ns: float

    def times(self, count: int) -> Parts:
        return Parts(count * self.beside_ns, count * self.waited_ns)


def begin_of(tasks: Sequence[Task], name: str) -> tuple[str, ...]:
    """The names of the tasks that the computation `name` begins after.

    name: a late one of the tasks. A layer whose gradients are reduced may compute in several parts.
    """
    after: tuple[str, ...] = ()
    stream: tuple[int, str] | None = None
    for task in reversed(tasks):
        if task.name == name:
            stream = task.stage, task.stream
        elif (task.stage, task.stream) != stream:
            continue
        elif not task.name.startswith(f"{name} part "):
            return (*after, task.name)
        after = task.after
    return after
