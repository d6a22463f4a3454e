"""Runs a command beside busy loops, and stops and continues random processes of it meanwhile.

python -m tests.beside [--loops 4] [--seed N] [--pause-ms 50 500] [--] COMMAND...

It returns the command's status, so that a test that load or a pause can turn is found by `make
test-beside` rather than on somebody's busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

# A loop ends by itself if this program is killed.
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"
END_S = 30  # time that an interrupted command has to clean up before it is killed
TOLD = (signal.SIGINT, signal.SIGTERM)  # to end
# States in /proc/PID/stat.
STOPPED = ("T", "t")
ENDED = ("", "Z", "X")


def stat(pid: int) -> tuple[str, int]:
    """State and parent of a process; ("", 0) if it is gone."""
    try:
        # The name, in parentheses, may contain anything.
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return state, int(parent)


def family(root: int) -> list[int]:
    """A process and all its descendants that have not ended, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, parent = stat(int(entry))
            if state not in ENDED:
                children.setdefault(parent, []).append(int(entry))
    found = [root] if stat(root)[0] not in ENDED else []
    for pid in found:
        found += children.get(pid, [])
    return found


def is_stop_pending(pid: int) -> bool:
    """Whether a stopped process was sent SIGSTOP once more: then somebody else wants it stopped."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "ShdPnd":
            return bool(int(value, 16) >> (signal.SIGSTOP - 1) & 1)
    return False


def is_stopped_soon(pid: int) -> bool:
    """Waits until a signal that stops has arrived: a busy machine may let its target wait."""
    last_s = time.monotonic() + 1
    while (state := stat(pid)[0]) not in STOPPED:
        if state in ENDED or time.monotonic() > last_s:
            return False
        time.sleep(0.001)  # the kernel tells nobody when a signal arrives
    return True


def pause(root: int, pid: int, while_stopped: Callable[[], None]) -> bool:
    """Stops a process of `root`'s family during the call; False if it was not to be stopped.

    A process that its test has stopped, before or meanwhile, stays stopped: the test continues it.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Only now, with the handle, does the number surely mean the same process.
        if pid not in family(root) or stat(pid)[0] in STOPPED:
            return False
        stopped = False
        try:
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
            stopped = is_stopped_soon(pid)
            while_stopped()
        finally:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # Before it has stopped, the signal that is pending is ours.
                if not stopped or not is_stop_pending(pid):
                    signal.pidfd_send_signal(handle, signal.SIGCONT)
    except (ProcessLookupError, PermissionError):  # it ended, or runs as somebody else
        return False
    finally:
        os.close(handle)
    return True


class EndedError(Exception):
    """This program was told to end, by a signal."""


def wait(seconds: float) -> None:
    """Sleeps. The signals that end are seen only here, so that nothing is left half done."""
    told = signal.sigtimedwait(TOLD, seconds)
    # Python returns garbage if this process was stopped until the time was over.
    if told is not None and told.si_signo in TOLD:
        raise EndedError(told.si_signo)


def start(words: list[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Starts a process that does not block the signals which this program does."""
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, TOLD)
    return subprocess.Popen(words, preexec_fn=unblock, **settings)


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps `count` processors busy."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        loops.extend(start([sys.executable, "-c", LOOP]) for _ in range(count))
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def end(command: subprocess.Popen[bytes], number: int) -> None:
    """Passes a signal on to the command, and kills what is left of its family after a while."""
    handles = []
    for pid in family(command.pid):
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(END_S)
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    command.wait()


def run(words: list[str], chance: random.Random, pause_s: tuple[float, float]) -> tuple[int, int]:
    """Runs the command with pauses; returns its status, as a shell's, and how many there were."""
    pauses = 0
    # In a group of its own, so that Ctrl-C reaches it once, from `end`.
    command = start(words, process_group=0)
    try:
        while command.poll() is None:
            wait(chance.uniform(*pause_s))
            if members := family(command.pid):
                while_stopped = partial(wait, chance.uniform(*pause_s))
                pauses += pause(command.pid, chance.choice(members), while_stopped)
    except EndedError as ended:
        end(command, ended.args[0])
        return 128 + ended.args[0], pauses
    status = command.returncode
    return (status if status >= 0 else 128 - status), pauses


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.beside", description=__doc__)
    parser.add_argument("--loops", type=int, default=4, help="busy loops beside the command")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--pause-ms", type=float, nargs=2, default=(50, 500), metavar=("MIN", "MAX")
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    words = options.command[options.command[:1] == ["--"] :]
    if not words:
        parser.error("no command to run")
    if not 0 < options.pause_ms[0] <= options.pause_ms[1]:
        parser.error(f"--pause-ms {options.pause_ms}: must be positive, the smaller one first")
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    print(f"beside: seed {options.seed}, {options.loops} busy loops", flush=True)
    pause_s = (options.pause_ms[0] / 1000, options.pause_ms[1] / 1000)
    with busy(options.loops):
        status, pauses = run(words, random.Random(options.seed), pause_s)
    print(f"beside: seed {options.seed}, {pauses} pauses, status {status}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
