"""Tests that `weft trace record` passes a signal on to its command once, if it has not got it."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.waiting import PATIENCE_S, until
from transport import native

ROOT = Path(__file__).resolve().parents[2]
# The grace is longer than any test takes, or as weft has it.
PATIENT = "from transport.cli import child, main; child.GRACE_S = 1e6; main()"
USUAL = "from transport.cli import main; main()"
CLEAN = clean_environment("NCCL_")
CLEAN["PYTHONPATH"] = str(ROOT)
# Counts SIGINT, and ends with status 5 at the second one.
AT_THE_SECOND = "trap 'echo hit >> hits; n=$((n+1)); [ $n -lt 2 ] || exit 5' INT; "
AT_THE_FIRST = "trap 'echo hit >> hits; exit 5' INT TERM; "
FOR_EVER = "touch ready; while :; do sleep 0.05; done"

pytestmark = pytest.mark.skipif(
    not native.PLUGIN_PATH.exists(), reason="the plugin is not in the package"
)


def words_of(code: str, script: str) -> list[str]:
    return [sys.executable, "-c", code, "trace", "record", "-o", "out", "--", "sh", "-c", script]


@contextmanager
def on_a_terminal(where: Path, code: str, script: str) -> Iterator[tuple[int, int]]:
    """The command in the foreground of a terminal; yields its process and the terminal's keys."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(where)
        os.execve(sys.executable, words_of(code, script), CLEAN)
    try:
        until((where / "ready").exists)
        yield pid, terminal
    finally:
        os.close(terminal)  # ends what still runs there


def status_of(pid: int, terminal: int) -> int:
    """Reads what the command prints until it ends; its exit status."""
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
        while os.read(terminal, 4096):
            pass
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def hits(where: Path) -> int:
    file = where / "hits"
    return file.read_text().count("hit") if file.exists() else 0


def test_record__a_key_reaches_the_command_once(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to weft and to the command: weft sends no second one."""
    script = "trap 'echo hit >> hits' INT; touch ready; n=0; "
    script += "while [ $n -lt 20 ]; do sleep 0.05; n=$((n+1)); done"
    with on_a_terminal(tmp_path, USUAL, script) as (pid, terminal):
        os.write(terminal, b"\x03")
        assert status_of(pid, terminal) == 0
    assert hits(tmp_path) == 1


def test_record__a_second_key_reaches_the_command_too(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, USUAL, AT_THE_SECOND + FOR_EVER) as (pid, terminal):
        os.write(terminal, b"\x03")
        until(lambda: hits(tmp_path) == 1)
        os.write(terminal, b"\x03")
        assert status_of(pid, terminal) == 5


def test_record__a_signal_to_weft_alone_is_passed_on_at_a_terminal(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, USUAL, AT_THE_FIRST + FOR_EVER) as (pid, terminal):
        os.kill(pid, signal.SIGINT)
        assert status_of(pid, terminal) == 5
    assert hits(tmp_path) == 1


def test_record__a_key_is_passed_on_to_a_command_of_another_group(tmp_path: Path) -> None:
    """setsid takes the command away from the terminal, which does not signal it."""
    script = f'exec setsid -w sh -c "{AT_THE_FIRST}{FOR_EVER}"'
    with on_a_terminal(tmp_path, USUAL, f"{script}") as (pid, terminal):
        os.write(terminal, b"\x03")
        assert status_of(pid, terminal) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record__a_signal_to_weft_alone_is_passed_on(tmp_path: Path, number: int) -> None:
    with started(tmp_path, USUAL, AT_THE_FIRST + FOR_EVER) as recording:
        recording.send_signal(number)
        assert recording.wait(PATIENCE_S) == 5
    assert hits(tmp_path) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record__what_a_signal_to_all_ends_gets_no_second_one(tmp_path: Path, number: int) -> None:
    """timeout(1) and job managers signal weft and the command, as a terminal does, and are none."""
    with started(tmp_path, PATIENT, AT_THE_FIRST + FOR_EVER) as recording:
        os.killpg(recording.pid, number)
        assert recording.wait(PATIENCE_S) == 5
    assert hits(tmp_path) == 1


@contextmanager
def started(where: Path, code: str, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command without a terminal, in a process group of its own."""
    recording = subprocess.Popen(
        words_of(code, script), cwd=where, env=CLEAN, start_new_session=True
    )
    try:
        until((where / "ready").exists)
        yield recording
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(recording.pid, signal.SIGKILL)
        recording.wait(PATIENCE_S)


def test_record__has_one_thread_which_alone_gets_signals(tmp_path: Path) -> None:
    """A second thread, as NumPy starts them, would take signals that the first one waits for."""
    done = subprocess.run(
        words_of(USUAL, "ls /proc/$PPID/task"),
        cwd=tmp_path,
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert len(done.stdout.split()) == 1, done.stdout
