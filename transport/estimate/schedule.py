"""When the tasks of a training step begin and end: each stream runs its tasks in order."""

from __future__ import annotations

from collections import defaultdict
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
    a task that communicates. nic_share: part of its time in which it keeps its GPU's NIC busy, both
    ways, or if it sends to another stage, `to`, that GPU's NIC the other way.
    """

    name: str
    stage: int
    stream: str
    kind: str
    ns: float
    after: tuple[str, ...] = ()
    sent: Estimate | None = None
    nic_share: float = 0.0
    to: int | None = None


@dataclass(frozen=True)
class Timed:
    """A schedule. begins_ns, ends_ns: begin and end of each task."""

    begins_ns: tuple[float, ...]
    ends_ns: tuple[float, ...]

    @property
    def length_ns(self) -> float:
        return max(self.ends_ns, default=0.0)


class Graph:
    """Which tasks wait for which, by their numbers; to run the same tasks several times.

    missing: number of tasks that must end before each task begins. later: the tasks that wait for
    each task. sharing: the kinds of communication that use NICs, if tasks of a stage could do so at
    once; else none.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        number_of = {task.name: number for number, task in enumerate(tasks)}
        self.missing = [0] * len(tasks)
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
        users = {(task.stage, task.stream) for task in tasks if task.nic_share}
        shares = len(users) > len({stage for stage, _ in users})
        self.sharing = frozenset(task.kind for task in tasks if task.nic_share and shares)


def run(
    tasks: Sequence[Task] | Graph,
    without: frozenset[str] = frozenset(),
    slowdown: Slowdown = NONE,
) -> Timed:
    """Begin and end of each task. without: kinds of communication that take no time.

    A task begins when the previous task of its stream and the tasks in `after` have ended. Tasks
    that need more of a stage's NIC than it has get equal parts of it, or less if they need less.
    ScheduleError if tasks wait for each other in a circle.
    """
    graph = tasks if isinstance(tasks, Graph) else Graph(tasks)
    if slowdown == NONE and graph.sharing <= without:
        begins, ends = _independent(graph, without)
    else:
        clock = _Clock(graph, without, slowdown)
        clock.run()
        begins, ends = clock.begins, clock.ends
    if ends and min(ends) < 0:
        stuck = graph.tasks[next(number for number, end in enumerate(ends) if end < 0)]
        raise ScheduleError(f"tasks wait for each other in a circle: {stuck.name} can never begin")
    return Timed(tuple(begins), tuple(ends))


def _independent(graph: Graph, without: frozenset[str]) -> tuple[list[float], list[float]]:
    """Begin and end of each task if none changes the speed of another; end -1: never."""
    begins, ends = [0.0] * len(graph.tasks), [-1.0] * len(graph.tasks)
    missing = list(graph.missing)
    ready = [number for number, count in enumerate(missing) if not count]
    while ready:
        number = ready.pop()
        task = graph.tasks[number]
        end = ends[number] = begins[number] + (0.0 if task.kind in without else task.ns)
        for one in graph.later[number]:
            begins[one] = max(begins[one], end)
            missing[one] -= 1
            if not missing[one]:
                ready.append(one)
    return begins, ends


class _Clock:
    """Runs tasks in the order of their times, as those that run at once slow each other.

    Computation and communication do by `slowdown`, and communication that shares a NIC does.

    due: heap of (end time, task, version). An entry is void if its version is not the task's in
    `valid`: the task's speed has changed since.
    """

    def __init__(self, graph: Graph, without: frozenset[str], slowdown: Slowdown) -> None:
        tasks = self.tasks = graph.tasks
        self.slowdown = slowdown
        self.begins, self.ends = [0.0] * len(tasks), [-1.0] * len(tasks)
        self.left_ns = [0.0 if task.kind in without else task.ns for task in tasks]
        self.missing, self.later = list(graph.missing), graph.later
        self.due: list[tuple[float, int, int]] = []
        self.valid = [0] * len(tasks)
        # Stage -> its running tasks that compute, and those that communicate.
        self.running: dict[int, tuple[set[int], set[int]]] = {
            task.stage: (set(), set()) for task in tasks
        }
        # (stage, is it sending) -> running tasks that use its NIC so, and the most that one gets.
        self.users: dict[tuple[int, bool], set[int]] = defaultdict(set)
        self.level: dict[tuple[int, bool], float] = defaultdict(lambda: 1.0)
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
        task, slow = self.tasks[number], self.slowdown
        level = min(self.level[one] for one in _nics(task)) if task.nic_share else 1.0
        shared = max(task.nic_share / level, 1.0)
        if not self.sides(number)[1]:
            return shared
        return slow.computation if self.is_computing(number) else shared * slow.communication

    def push(self, number: int, now_ns: float) -> None:
        self.valid[number] += 1
        ns = self.left_ns[number] * self.slowness(number)
        heappush(self.due, (now_ns + ns, number, self.valid[number]))

    def settle(self, number: int, now_ns: float) -> None:
        """Counts what a running task has done until now."""
        done_ns = (now_ns - self.since_ns[number]) / self.slowness(number)
        self.left_ns[number] = max(self.left_ns[number] - done_ns, 0.0)
        self.since_ns[number] = now_ns

    def begin(self, number: int, now_ns: float) -> None:
        self.begins[number] = self.since_ns[number] = now_ns
        if self.left_ns[number]:
            self.change(number, now_ns, joins=True)
        self.push(number, now_ns)

    def change(self, number: int, now_ns: float, joins: bool) -> None:
        """Adds a task to the running ones or removes it, and updates the speed of the others."""
        same, others = self.sides(number)
        matters = len(same) == (0 if joins else 1)
        changed = set(others) if matters else set()
        task, levels = self.tasks[number], {}
        for nic in _nics(task) if task.nic_share else ():
            rivals = self.users[nic] - {number}
            using = rivals | {number} if joins else rivals
            levels[nic] = _level([self.tasks[one].nic_share for one in using])
            if levels[nic] != self.level[nic]:
                changed |= rivals
        for one in changed:
            self.settle(one, now_ns)
        for each in (same, *(self.users[nic] for nic in levels)):
            if joins:
                each.add(number)
            else:
                each.remove(number)
        self.level |= levels
        for one in changed:
            self.push(one, now_ns)

    def end(self, number: int, now_ns: float) -> None:
        self.ends[number] = now_ns
        if number in self.sides(number)[0]:
            self.change(number, now_ns, joins=False)
        for one in self.later[number]:
            self.missing[one] -= 1
            if not self.missing[one]:
                self.begin(one, now_ns)


def _level(shares: Sequence[float]) -> float:
    """The most that a user of a NIC gets: what is left after those that want less, in equal parts.

    That is max-min fairness (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2).
    """
    left, users = 1.0, len(shares)
    for share in sorted(shares):
        if share * users >= left:
            return left / users
        left, users = left - share, users - 1
    return 1.0


def _nics(task: Task) -> tuple[tuple[int, bool], tuple[int, bool]]:
    """The NICs that a task uses: its stage's to send, and the receiver's."""
    return (task.stage, True), (task.stage if task.to is None else task.to, False)


def sending(tasks: Sequence[Task]) -> frozenset[str]:
    """The kinds of the tasks that communicate."""
    return frozenset(task.kind for task in tasks) - {COMPUTE, IDLE}


def exposed_ns(tasks: Sequence[Task] | Graph, slowdown: Slowdown = NONE) -> dict[str, float]:
    """Kind of communication -> by how much the step would be shorter if it took no time."""
    graph = tasks if isinstance(tasks, Graph) else Graph(tasks)
    whole = run(graph, slowdown=slowdown).length_ns
    return {
        kind: difference_ns(whole, run(graph, frozenset({kind}), slowdown).length_ns)
        for kind in sorted(sending(graph.tasks))
    }
