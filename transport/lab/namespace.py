"""Creates, enters, searches and removes network namespaces.

Named namespaces are files in /run/netns, so that `ip netns` lists them too.
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
    """Runs `work` in a new thread whose namespace `enter` changes first; returns its result."""
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
        # On Ctrl-C, wait for the thread, so that cleaning up does not race with `work`.
        thread.join()
        raise
    if errors:
        raise errors[0]
    return results[0]


def inside(name: str, work: Callable[[], T]) -> T:
    """Runs `work` in a namespace; sockets opened there stay in it."""
    descriptor = open_namespace(name)
    try:
        return in_thread(lambda: kernel.enter_namespace(descriptor), work)
    finally:
        os.close(descriptor)


def in_scratch(work: Callable[[], T]) -> T:
    """Runs `work` in a temporary unnamed namespace."""
    return in_thread(kernel.new_namespace, work)


def open_namespace(name: str) -> int:
    try:
        return os.open(DIRECTORY / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LabError(f"the namespace {name} is gone: weft lab down, then up again") from None


def exists(name: str) -> bool:
    return (DIRECTORY / name).exists()


def make(name: str) -> None:
    """Creates a named namespace."""
    share_directory()
    path = DIRECTORY / name
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    in_thread(
        kernel.new_namespace,
        lambda: kernel.mount("/proc/thread-self/ns/net", str(path), kernel.MS_BIND),
    )


def share_directory() -> None:
    """Makes /run/netns a shared mount, as iproute2 does.

    Removing a name then takes effect in every mount namespace.
    """
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = os.open(DIRECTORY, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Lock: if two processes mounted it at once, the second mount would hide the first.
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
    """Removes a named namespace with its devices, even if it is half created."""
    path = DIRECTORY / name
    try:
        kernel.unmount(str(path))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
    path.unlink(missing_ok=True)


def processes(names: Iterable[str]) -> list[int]:
    """The pids of the processes in these namespaces, except this process."""
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
        except OSError:  # the process has ended
            continue
        if (there.st_dev, there.st_ino) in wanted:
            pids.append(int(entry))
    return pids


def end_processes(names: list[str]) -> int:
    """Ends the processes in these namespaces; returns how many there were.

    A running process would keep its namespace alive.
    """
    ended: set[int] = set()
    for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        deadline = time.monotonic() + seconds
        while pids := processes(names):
            for pid in pids:
                # Send each process SIGTERM once, but SIGKILL until no process is left.
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
    raise LabError(f"processes {pids} in the lab survived SIGKILL: end them, then weft lab down")
