"""Makes, enters, searches and removes network namespaces.

Names are files in /run/netns, so that `ip netns` sees them too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from transport.lab import kernel
from transport.lab.model import LabError

T = TypeVar("T")

DIRECTORY = Path("/run/netns")
TERM_S, KILL_S, STEP_S = 2.0, 5.0, 0.02


def in_thread(enter: Callable[[], None], work: Callable[[], T]) -> T:
    """The result of `work` in a thread that `enter` moved elsewhere, and that ends there."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            enter()
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="weft-lab")
    thread.start()
    try:
        thread.join()
    except BaseException:
        # Ctrl-C: what is under way ends first, so that undoing it meets no moving target.
        thread.join()
        raise
    if errors:
        raise errors[0]
    return results[0]


def inside(name: str, work: Callable[[], T]) -> T:
    """The result of `work` within a namespace; sockets opened there stay there."""
    descriptor = open_namespace(name)
    try:
        return in_thread(lambda: kernel.enter_namespace(descriptor), work)
    finally:
        os.close(descriptor)


def in_scratch(work: Callable[[], T]) -> T:
    """The result of `work` within a nameless namespace that goes with it."""
    return in_thread(kernel.new_namespace, work)


def open_namespace(name: str) -> int:
    try:
        return os.open(DIRECTORY / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LabError(f"the namespace {name} is gone: weft lab down, then up again") from None


def exists(name: str) -> bool:
    return (DIRECTORY / name).exists()


def make(name: str) -> None:
    """A new namespace with a name."""
    share_directory()
    path = DIRECTORY / name
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    in_thread(
        kernel.new_namespace,
        lambda: kernel.mount("/proc/thread-self/ns/net", str(path), kernel.MS_BIND),
    )


def share_directory() -> None:
    """As iproute2 has it: a shared mount, so that removing a name reaches every mount namespace."""
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = os.open(DIRECTORY, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Two at once would mount it twice, and hide what is in the first.
        fcntl.flock(lock, fcntl.LOCK_EX)
        shared = kernel.MS_SHARED | kernel.MS_REC
        try:
            kernel.mount("", str(DIRECTORY), shared)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kernel.mount(str(DIRECTORY), str(DIRECTORY), kernel.MS_BIND | kernel.MS_REC)
            kernel.mount("", str(DIRECTORY), shared)
    finally:
        os.close(lock)


def remove(name: str) -> None:
    """Takes the name away, also one that was only half made; its devices go with the namespace."""
    path = DIRECTORY / name
    try:
        kernel.unmount(str(path))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
    path.unlink(missing_ok=True)


def processes(names: Iterable[str]) -> list[int]:
    """The processes in these namespaces, but not this one."""
    wanted = set()
    for name in names:
        try:
            found = (DIRECTORY / name).stat()
        except OSError:
            continue
        wanted.add((found.st_dev, found.st_ino))
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            there = os.stat(f"/proc/{entry}/ns/net")
        except OSError:  # it ended
            continue
        if (there.st_dev, there.st_ino) in wanted:
            pids.append(int(entry))
    return pids


def end_processes(names: list[str]) -> int:
    """Ends what runs in these namespaces, which would keep them; returns how many there were."""
    ended: set[int] = set()
    for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        deadline = time.monotonic() + seconds
        while pids := processes(names):
            for pid in pids:
                # The second signal goes on coming, for a process may have started another.
                if pid not in ended or number == signal.SIGKILL:
                    ended.add(pid)
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        continue
            if time.monotonic() > deadline:
                break
            time.sleep(STEP_S)
        if not pids:
            return len(ended)
    raise LabError(f"processes {pids} in the lab do not end: end them, then weft lab down")
