"""Runs the worker processes of a swarm and reports those that die or hang.

If a worker dies, only the scenario that it was running is affected.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Any

from tests.swarm.draw import Tables
from tests.swarm.finding import SHRINK_HOPS_MAX, Finding, Looked, look, look_at_seed
from transport.ground.workers import follow_parent, interrupts_held

MEMORY_BYTES_MAX = 8 << 30  # limit of a worker's address space; a run needs some MB


@dataclass(frozen=True)
class Task:
    """A seed to run, or the scenario in `tables` if given."""

    seed: int
    tables: Tables | None = None
    twice: bool = False


def serve(pipe: Connection) -> None:
    """The main loop of a worker: runs tasks from the pipe until it receives None."""
    follow_parent()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        while (task := pipe.recv()) is not None:
            pipe.send(_looked(task))
    except EOFError:
        return


def _looked(task: Task) -> Looked:
    try:
        if task.tables is None:
            return look_at_seed(task.seed)
        return look(task.tables, twice=task.twice, hops_max=SHRINK_HOPS_MAX)
    except Exception as error:  # any exception is a finding
        return Looked(Finding("crash", f"{type(error).__name__}: {error}"))


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: Task | None = None
    began: float = 0.0


@dataclass
class Crew:
    """A pool of `jobs` workers; a scenario may take `wall_s` seconds."""

    jobs: int
    wall_s: float
    _workers: list[_Worker] = field(default_factory=list)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _end(worker)
        self._workers.clear()

    def each(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Looked]]:
        """Yields every task with its result, in order of completion."""
        more = True
        while more or any(worker.task for worker in self._workers):
            while more and (worker := self._free()) is not None:
                task = next(tasks, None)
                if task is None:
                    more = False
                else:
                    self._give(worker, task)
            yield from self._done()

    def one(self, task: Task) -> Looked:
        """Runs a single task; no other task may be running."""
        return next(looked for _, looked in self.each(iter([task])))

    def _free(self) -> _Worker | None:
        for worker in self._workers:
            if worker.task is None:
                return worker
        if len(self._workers) == self.jobs:
            return None
        context = get_context("spawn")
        mine, its = context.Pipe()
        process = context.Process(target=serve, args=(its,), daemon=True)
        with interrupts_held():
            process.start()
        its.close()
        self._workers.append(_Worker(process, mine))
        return self._workers[-1]

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.task, worker.began = task, monotonic()
        worker.pipe.send(task)

    def _done(self) -> Iterator[tuple[Task, Looked]]:
        busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        if not busy:
            return
        first = min(worker.began for worker in busy.values())
        ready = wait(list(busy), timeout=max(first + self.wall_s - monotonic(), 0.01))
        for pipe in ready:
            worker = busy[pipe]  # type: ignore[index]
            task = worker.task
            assert task is not None
            try:
                looked: Looked = worker.pipe.recv()
                worker.task = None
            except (EOFError, ConnectionResetError):
                looked = Looked(Finding("crash", self._lost(worker)))
            yield task, looked
        for worker in busy.values():
            if worker.pipe not in ready and monotonic() - worker.began > self.wall_s:
                task = worker.task
                assert task is not None
                self._workers.remove(worker)
                _end(worker)
                yield task, Looked(Finding("hang", f"not finished in {self.wall_s:g} s"))

    def _lost(self, worker: _Worker) -> str:
        self._workers.remove(worker)
        worker.process.join(10)
        code = worker.process.exitcode
        _end(worker)
        if code is not None and code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process exited with status {code}"


def _end(worker: _Worker) -> None:
    if worker.task is None and worker.process.is_alive():
        _say_go(worker.pipe)
        worker.process.join(2)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.pipe.close()
    worker.process.close()


def _say_go(pipe: Any) -> None:
    try:
        pipe.send(None)
    except OSError:
        return
