"""When the tasks of a training step begin and end: each stream runs its tasks in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transport.estimate.collectives import Estimate

COMPUTE = "compute"


class ScheduleError(ValueError):
    """Tasks that wait for each other in a circle."""


@dataclass(frozen=True)
class Task:
    """A piece of work of one pipeline stage. kind: COMPUTE, or the kind of communication.

    name: of this task only. stream: tasks of one stage and stream run one after the other, in the
    order of the list. after: names of the tasks that must have ended before. sent: the operation of
    a task that communicates.
    """

    name: str
    stage: int
    stream: str
    kind: str
    ns: float
    after: tuple[str, ...] = ()
    sent: Estimate | None = None


@dataclass(frozen=True)
class Timed:
    """begins_ns, ends_ns: of each task."""

    begins_ns: tuple[float, ...]
    ends_ns: tuple[float, ...]

    @property
    def length_ns(self) -> float:
        return max(self.ends_ns, default=0.0)


def run(tasks: Sequence[Task], without: frozenset[str] = frozenset()) -> Timed:
    """Begin and end of each task. without: kinds of communication that take no time.

    Each task begins when its stream and all tasks before it are done. ScheduleError if none can.
    """
    number_of = {task.name: number for number, task in enumerate(tasks)}
    before = [[number_of[one] for one in task.after] for task in tasks]
    queues: dict[tuple[int, str], list[int]] = {}
    for number, task in enumerate(tasks):
        queues.setdefault((task.stage, task.stream), []).append(number)
    at = dict.fromkeys(queues, 0)
    free_ns = dict.fromkeys(queues, 0.0)
    begins, ends = [0.0] * len(tasks), [-1.0] * len(tasks)
    waiting: dict[int, list[tuple[int, str]]] = {}  # task -> streams whose next task waits for it
    ready = list(queues)
    done = 0
    while ready:
        stream = ready.pop()
        queue = queues[stream]
        while at[stream] < len(queue):
            number = queue[at[stream]]
            task = tasks[number]
            missing = next((one for one in before[number] if ends[one] < 0), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stream)
                break
            begin = max([free_ns[stream], *(ends[one] for one in before[number])])
            took = 0.0 if task.kind in without else task.ns
            begins[number], ends[number] = begin, begin + took
            free_ns[stream] = ends[number]
            at[stream] += 1
            done += 1
            ready += waiting.pop(number, [])
    if done < len(tasks):
        stuck = next(
            queue[at[stream]] for stream, queue in queues.items() if at[stream] < len(queue)
        )
        raise ScheduleError(f"{tasks[stuck].name} can never begin")
    return Timed(tuple(begins), tuple(ends))


def exposed_ns(tasks: Sequence[Task]) -> dict[str, float]:
    """Kind of communication -> by how much the step would be shorter if it took no time."""
    whole = run(tasks).length_ns
    kinds = sorted({task.kind for task in tasks} - {COMPUTE})
    return {kind: whole - run(tasks, frozenset({kind})).length_ns for kind in kinds}
