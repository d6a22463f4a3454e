"""Tests that `python -m tests.beside` pauses the command's processes and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import beside

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120  # only catches a hang

# Two processes that end once they were stopped and continued twice each.
PAUSED_TWICE = """
import os, signal, sys
pid = os.fork()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
for _ in range(2):
    signal.sigwait({signal.SIGCONT})
if pid:
    sys.exit(7 if os.waitpid(pid, 0)[1] == 0 else 1)
"""

# Two processes that say their numbers; one of them ignores SIGINT.
ENDLESS = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN if os.fork() == 0 else signal.default_int_handler)
os.write(1, f"member {os.getpid()}\\n".encode())  # in one piece
while True:
    signal.pause()
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.beside", "--loops", "2", "--seed", "3", *words]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal\nsignal.pause()"]) as process:
        yield process
        process.kill()


def state_once_stopped(pid: int) -> str:
    """The state of a child of this process; waits until it is stopped."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    return beside.stat(pid)[0]


def test_beside__pauses_every_process_and_returns_the_status() -> None:
    words = command("--pause-ms", "1", "20", "--", sys.executable, "-c", PAUSED_TWICE)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 7, done.stderr
    first, last = done.stdout.splitlines()
    assert first == "beside: seed 3, 2 busy loops"
    pauses, status = last.removeprefix("beside: seed 3, ").split(" pauses, ")
    assert int(pauses) >= 4
    assert status == "status 7"


def test_beside__tells_a_signal_as_a_shell_does() -> None:
    dying = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(command(sys.executable, "-c", dying), cwd=ROOT, timeout=LIMIT_S)
    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_beside__ends_its_loops_and_the_command_when_told_to(number: signal.Signals) -> None:
    words = command("--pause-ms", "1", "20", "--", sys.executable, "-c", ENDLESS)
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            members = [int(process.stdout.readline().split()[1]) for _ in range(2)]
            handles = [os.pidfd_open(pid) for pid in beside.family(process.pid)[1:]]
            assert len(handles) == 2 + len(members)
            process.send_signal(number)
            assert process.wait(LIMIT_S) == 128 + number
        finally:
            process.terminate()
    for handle in handles:
        assert select.select([handle], [], [], LIMIT_S)[0], "a process has not ended"
        os.close(handle)


def test_busy__ends_its_loops() -> None:
    with beside.busy(3) as loops:
        assert all(loop.poll() is None for loop in loops)
    assert [loop.returncode for loop in loops] == [-signal.SIGKILL] * 3


def test_pause__stops_and_continues(sleeper: subprocess.Popen[bytes]) -> None:
    states = []

    def wait() -> None:
        states.append(state_once_stopped(sleeper.pid))

    assert beside.pause(os.getpid(), sleeper.pid, wait)
    assert states == ["T"]
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)


def test_pause__continues_if_told_to_end_meanwhile(sleeper: subprocess.Popen[bytes]) -> None:
    def wait() -> None:
        state_once_stopped(sleeper.pid)
        raise beside.EndedError(signal.SIGINT)

    with pytest.raises(beside.EndedError):
        beside.pause(os.getpid(), sleeper.pid, wait)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)


def test_pause__does_not_take_its_own_late_signal_for_that_of_a_test(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "is_stopped_soon", lambda pid: False)
    monkeypatch.setattr(beside, "is_stop_pending", lambda pid: True)

    def wait() -> None:
        state_once_stopped(sleeper.pid)

    assert beside.pause(os.getpid(), sleeper.pid, wait)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)


def test_pause__leaves_alone_what_is_not_of_the_command(sleeper: subprocess.Popen[bytes]) -> None:
    assert not beside.pause(sleeper.pid, os.getpid(), lambda: pytest.fail("was stopped"))


def test_pause__leaves_stopped_what_its_test_has_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    def stop_too() -> None:
        state_once_stopped(sleeper.pid)
        sleeper.send_signal(signal.SIGSTOP)

    assert beside.pause(os.getpid(), sleeper.pid, stop_too)
    assert beside.stat(sleeper.pid)[0] == "T"
    assert not beside.pause(os.getpid(), sleeper.pid, lambda: pytest.fail("was stopped"))
    assert beside.stat(sleeper.pid)[0] == "T"
