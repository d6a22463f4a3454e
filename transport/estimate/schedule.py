"""When the tasks of a training step begin and end: each stream runs its tasks in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from transport.estimate.collectives import Estimate
from transport.estimate.networks import NONE, Slowdown
from transport.estimate.times import difference_ns

COMPUTE = "compute"
IDLE = "idle"  # waiting for other stages, where a schedule's bubble is known and not simulated


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
    """A schedule. begins_ns, ends_ns: begin and end of each task."""

    begins_ns: tuple[float, ...]
    ends_ns: tuple[float, ...]

    @property
    def length_ns(self) -> float:
        return max(self.ends_ns, default=0.0)


def run(
    tasks: Sequence[Task], without: frozenset[str] = frozenset(), slowdown: Slowdown = NONE
) -> Timed:
    """Begin and end of each task. without: kinds of communication that take no time.

    A task begins when the previous task of its stream and the tasks in `after` have ended.
    ScheduleError if tasks wait for each other in a circle.
    """
    clock = _Clock(tasks, without, slowdown)
    clock.run()
    if stuck := clock.stuck():
        raise ScheduleError(f"tasks wait for each other in a circle: {stuck.name} can never begin")
    return Timed(tuple(clock.begins), tuple(clock.ends))


class _Clock:
    """Runs tasks in the order of their times.

    due: heap of (end time, task, version). An entry is void if its version is not the task's in
    `valid`: the task's speed has changed since.
    """

    def __init__(self, tasks: Sequence[Task], without: frozenset[str], slowdown: Slowdown) -> None:
        self.tasks = tasks
        self.slowdown = slowdown
        self.shares = slowdown != NONE  # False: nothing changes the speed of a task
        self.begins, self.ends = [0.0] * len(tasks), [-1.0] * len(tasks)
        self.left_ns = [0.0 if task.kind in without else task.ns for task in tasks]
        number_of = {task.name: number for number, task in enumerate(tasks)}
        self.missing = [0] * len(tasks)  # number of tasks that must end before the task begins
        self.later: list[list[int]] = [[] for _ in tasks]
        last: dict[tuple[int, str], int] = {}
        for number, task in enumerate(tasks):
            before = {number_of[name] for name in task.after}
            if (stream := (task.stage, task.stream)) in last:
                before.add(last[stream])
            last[stream] = number
            self.missing[number] = len(before)
            for one in before:
                self.later[one].append(number)
        self.due: list[tuple[float, int, int]] = []
        self.valid = [0] * len(tasks)
        # Stage -> its running tasks that compute, and those that communicate.
        self.running: dict[int, tuple[set[int], set[int]]] = {
            task.stage: (set(), set()) for task in tasks
        }
        self.since_ns = [0.0] * len(tasks)

    def run(self) -> None:
        for number, missing in enumerate(self.missing):
            if not missing:
                self.begin(number, 0.0)
        while self.due:
            now_ns, number, valid = heappop(self.due)
            if valid == self.valid[number] and self.ends[number] < 0:
                self.end(number, now_ns)

    def sides(self, number: int) -> tuple[set[int], set[int]]:
        """The stage's running tasks of the task's kind (computing or sending), and the others."""
        computing, sending = self.running[self.tasks[number].stage]
        return (computing, sending) if self.is_computing(number) else (sending, computing)

    def is_computing(self, number: int) -> bool:
        return self.tasks[number].kind in (COMPUTE, IDLE)

    def slowness(self, number: int) -> float:
        if not self.sides(number)[1]:
            return 1.0
        slow = self.slowdown
        return slow.computation if self.is_computing(number) else slow.communication

    def push(self, number: int, now_ns: float) -> None:
        self.valid[number] += 1
        ns = self.left_ns[number] * (self.slowness(number) if self.shares else 1.0)
        heappush(self.due, (now_ns + ns, number, self.valid[number]))

    def settle(self, number: int, now_ns: float) -> None:
        """Counts what a running task has done until now."""
        done_ns = (now_ns - self.since_ns[number]) / self.slowness(number)
        self.left_ns[number] = max(self.left_ns[number] - done_ns, 0.0)
        self.since_ns[number] = now_ns

    def begin(self, number: int, now_ns: float) -> None:
        self.begins[number] = self.since_ns[number] = now_ns
        if self.shares and self.left_ns[number]:
            self.change(number, now_ns, joins=True)
        self.push(number, now_ns)

    def change(self, number: int, now_ns: float, joins: bool) -> None:
        """Adds a task to the running ones or removes it, and updates the speed of the others."""
        same, others = self.sides(number)
        matters = len(same) == (0 if joins else 1)
        for one in others if matters else ():
            self.settle(one, now_ns)
        if joins:
            same.add(number)
        else:
            same.remove(number)
        for one in others if matters else ():
            self.push(one, now_ns)

    def end(self, number: int, now_ns: float) -> None:
        self.ends[number] = now_ns
        if self.shares and number in self.sides(number)[0]:
            self.change(number, now_ns, joins=False)
        for one in self.later[number]:
            self.missing[one] -= 1
            if not self.missing[one]:
                self.begin(one, now_ns)

    def stuck(self) -> Task | None:
        """The first task that did not end."""
        waits = (task for task, end in zip(self.tasks, self.ends, strict=True) if end < 0)
        return next(waits, None)


def sending(tasks: Sequence[Task]) -> frozenset[str]:
    """The kinds of the tasks that communicate."""
    return frozenset(task.kind for task in tasks) - {COMPUTE, IDLE}


def exposed_ns(tasks: Sequence[Task], slowdown: Slowdown = NONE) -> dict[str, float]:
    """Kind of communication -> by how much the step would be shorter if it took no time."""
    whole = run(tasks, slowdown=slowdown).length_ns
    kinds = sorted(sending(tasks))
    return {
        kind: difference_ns(whole, run(tasks, frozenset({kind}), slowdown).length_ns)
        for kind in kinds
    }
