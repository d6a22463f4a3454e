"""weft's own stream between two namespaces, out of and into memory larger than the caches."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from bench.lib.common import Config
from bench.lib.softirqs import softirqs
from bench.lib.threads import metered
from transport import Endpoint
from transport.lab import kernel, namespace

MESSAGE_BYTES, IN_FLIGHT = 1 << 20, 16
WAIT_S = 60.0
Words = np.ndarray[Any, np.dtype[np.uint64]]


def filled(buffer_bytes: int) -> Words:
    """Words that differ, so that a message at another place is seen."""
    return np.arange(buffer_bytes // 8, dtype=np.uint64)


def touched(buffer_bytes: int) -> Words:
    """Memory that has its pages."""
    return np.full(buffer_bytes // 8, 1, dtype=np.uint64)


@contextmanager
def kernel_share() -> Iterator[dict[str, Any]]:
    """Fills the dictionary with the share of the kernel in what this process used in the block.

    The kernel samples it at clock ticks.
    """
    found: dict[str, Any] = {}
    begin = resource.getrusage(resource.RUSAGE_SELF)
    yield found
    end = resource.getrusage(resource.RUSAGE_SELF)
    in_kernel_s = end.ru_stime - begin.ru_stime
    whole_s = in_kernel_s + end.ru_utime - begin.ru_utime
    found["kernel_share"] = in_kernel_s / whole_s if whole_s else 0.0


def enter(name: str) -> None:
    """Moves this process, which has one thread yet, to a namespace."""
    with open(namespace.DIRECTORY / name, "rb") as held:
        kernel.enter_namespace(held.fileno())


def receiver(pipe: Pipe, config: Config) -> Config:
    """Receives the messages; returns what this process used after the first ones."""
    enter(config["spaces"][1])
    memory = touched(config["buffer_bytes"]).reshape(-1, MESSAGE_BYTES // 8)
    total = config["warm"] + config["messages"]
    posted: deque[Any] = deque()
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint(**config["knobs"]))
        listener = stack.enter_context(endpoint.listen())
        pipe.send(("address", listener.handle))
        connection = stack.enter_context(listener.accept(timeout_s=30))

        def post(at: int) -> None:
            if at < total:
                posted.append(connection.irecv_into(memory[at % len(memory)]))

        def take(begin: int, count: int) -> int:
            """The number of messages that do not begin as they were sent."""
            wrong = 0
            for at in range(begin, begin + count):
                posted.popleft().wait(timeout_s=WAIT_S)
                place = at % len(memory)
                wrong += int(memory[place, 0]) != place * (MESSAGE_BYTES // 8)
                post(at + IN_FLIGHT)
            return wrong

        for at in range(IN_FLIGHT):
            post(at)
        wrong = take(0, config["warm"])
        with metered() as used, kernel_share() as share:
            wrong += take(config["warm"], config["messages"])
        return used | share | {"wrong": wrong}


def sender(_pipe: Pipe, config: Config) -> Config:
    enter(config["spaces"][0])
    memory = filled(config["buffer_bytes"]).reshape(-1, MESSAGE_BYTES // 8)
    started: deque[Any] = deque()
    with ExitStack() as stack:
        endpoint = stack.enter_context(Endpoint(**config["knobs"]))
        connection = stack.enter_context(endpoint.connect(config["address"]))

        def put(begin: int, count: int) -> None:
            for at in range(begin, begin + count):
                if len(started) == IN_FLIGHT:
                    started.popleft().wait(timeout_s=WAIT_S)
                started.append(connection.isend(memory[at % len(memory)]))

        put(0, config["warm"])
        with metered() as used, softirqs() as kernels, kernel_share() as share:
            put(config["warm"], config["messages"])
            while started:
                started.popleft().wait(timeout_s=WAIT_S)
        return used | kernels | share
