"""Tests `weft top` without a terminal, and on one: keys, and exits, which restore the terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from tests.api.support import PATIENCE_S, ROOT, running
from tests.environment import clean_environment
from tests.live.support import exchanging, weft
from tests.stopping import stopped
from tests.waiting import until
from transport.live import rates, read

# Makes the terminal at stdin the controlling one, so that its keys send signals.
START = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from transport.cli import main
main()
"""
ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Screen:
    """`weft top` on a new terminal, and its output there that was not checked yet."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, file: int) -> None:
        self.process = process
        self.master = master
        self.modes = termios.tcgetattr(file)
        self._file = file
        self.written = b""

    def until(self, holds: Callable[[bytes], Any]) -> bytes:
        """Reads until what was written since the last call satisfies a condition; returns it."""

        def reads() -> bool:
            assert holds(self.written) or self.read(), self.written[-4000:]
            return bool(holds(self.written))

        until(reads, lambda: str(self.written[-4000:]))
        found, self.written = self.written, b""
        return found

    def read(self, wait_s: float = 1.0) -> bool:
        """Reads once; False if the process has ended and everything is read."""
        if not select.select([self.master], [], [], wait_s)[0]:
            return self.process.poll() is None
        self.written += os.read(self.master, 1 << 16)
        return True

    def shows(self, *texts: str) -> bytes:
        return self.until(lambda written: all(text.encode() in written for text in texts))

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, rows: int, width: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, width, 0, 0))

    def ended(self) -> int:
        """Waits until `weft top` ends; checks that it restored the terminal. Returns its status."""
        while self.read(0.1):
            pass
        status = self.process.wait(PATIENCE_S)
        assert self.written.rindex(LEAVE) > self.written.rfind(ENTER)
        assert self.written.rindex(SHOW_CURSOR) > self.written.rfind(b"\x1b[?25l")
        assert termios.tcgetattr(self._file) == self.modes
        assert b"Traceback" not in self.written
        return status


@contextmanager
def top(where: Path, *arguments: str, width: int = 200) -> Iterator[Screen]:
    """Runs `weft top` on a new terminal."""
    master, file = pty.openpty()
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    names = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", START, "top", *arguments],
        cwd=ROOT,
        env=names | {"WEFT_TELEMETRY": str(where), "TERM": "xterm-256color"},
        stdin=file,
        stdout=file,
        stderr=file,
        start_new_session=True,
    )
    try:
        yield Screen(process, master, file)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)
        os.close(master)
        os.close(file)


def test_top__shows_rates_and_follows_keys(tmp_path: Path) -> None:
    with exchanging(tmp_path) as (_, partner), top(tmp_path, "--interval", "0.2") as screen:
        screen.shows(str(partner.pid), "127.0.0.1", "SENT/s", "MB")
        screen.press(b"p")
        screen.shows("usable", "PATH")
        screen.press(b"c")
        screen.shows("CONNECTION")
        screen.press(b"e")
        screen.shows("LAST ROUND")
        screen.press(b"s")
        screen.shows("sorted by RECEIVED/s")
        screen.press(b"S")
        screen.shows("sorted by SENT/s")
        screen.press(b"h")
        screen.shows("next or previous column")
        screen.press(b"h")
        screen.shows("PEER")
        screen.resize(8, 60)
        assert b"WINDOW" not in screen.until(lambda written: b"lines 1 to 6 of" in written)[-900:]
        screen.press(b"\x1b[6~")
        screen.shows("lines 7 to")
        screen.press(b"q")
        assert screen.ended() == 0


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGINT, 130)],
)
def test_top__a_signal_leaves_the_terminal_as_it_was(
    tmp_path: Path, number: int, status: int
) -> None:
    with top(tmp_path) as screen:
        screen.shows("no running process has a telemetry page")
        screen.process.send_signal(number)
        assert screen.ended() == status


def test_top__control_keys(tmp_path: Path) -> None:
    with top(tmp_path) as screen:
        screen.shows("0 processes")
        screen.press(b"\x1a")  # Ctrl-Z: no effect on a process whose parent is in another session
        screen.shows(LEAVE.decode(), "0 processes")
        screen.press(b"\x03")  # Ctrl-C
        assert screen.ended() == 130


def test_top__a_directory_that_is_removed_is_said(tmp_path: Path) -> None:
    where = tmp_path / "pages"
    where.mkdir()
    with top(where, "--interval", "0.1") as screen:
        screen.shows("no running process has a telemetry page")
        where.rmdir()
        screen.shows("cannot list")
        screen.press(b"q")
        assert screen.ended() == 0


def test_top__without_a_terminal_prints_snapshots(tmp_path: Path) -> None:
    with exchanging(tmp_path) as (echo, partner):
        done = weft("top", "--interval", "0.3", "--count", "2", "-p", "-c", "-e", where=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("COMMAND") == 2
        short = weft("top", "--interval", "0.3", "--rows", "3", "-p", "-c", "-e", where=tmp_path)
        assert len(short.stdout.splitlines()) == 7  # a heading, 2 processes, an empty line, ...
        assert "more rows: --rows" in short.stdout
        one = weft("top", "--interval", "0.3", "--rows", "1", where=tmp_path)
        heading, process, rest = one.stdout.splitlines()
        assert heading.split()[0] == "PID"
        assert int(process.split()[0]) in (echo.pid, partner.pid)
        assert rest.endswith("more rows: --rows, or give a PID")
        assert done.stdout.count("usable") == 16
        assert "\x1b" not in done.stdout
        done = weft("top", str(partner.pid), "--interval", "0.3", "--json", "-", where=tmp_path)
        (snapshot,) = json.loads(done.stdout)
        (process,) = snapshot["processes"]
        assert process["pid"] == partner.pid
        assert process["traffic"]["sent_bytes_s"] >= 0
        assert snapshot["interval_s"] > 0
        echo.kill()
        echo.wait()
        done = weft("top", "--interval", "0.1", where=tmp_path)
        assert done.returncode == 0
        assert str(echo.pid) not in done.stdout
        done = weft("top", str(echo.pid), where=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"process {echo.pid} has ended: weft counters --live {echo.pid}" in done.stderr


def test_top__a_process_that_ends_leaves_the_table(tmp_path: Path) -> None:
    with exchanging(tmp_path) as (echo, partner), top(tmp_path, "--interval", "0.1") as screen:
        screen.shows("2 processes", str(echo.pid), str(partner.pid))
        with stopped(partner.pid):  # it would end, too
            echo.kill()
            echo.wait()
            screen.shows("1 processes", "ended: 1")
            screen.press(b"p")  # draws the whole screen again
            assert str(echo.pid).encode() not in screen.shows("PATH")
        screen.press(b"q")
        assert screen.ended() == 0


def test_top__says_what_it_cannot_do(tmp_path: Path) -> None:
    done = weft("top", "--interval", "0.1", where=tmp_path)
    assert (done.returncode, done.stdout) == (0, "no running process has a telemetry page\n")
    done = weft("top", "1", where=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"weft: no telemetry page of process 1 in {tmp_path} can be read\n"
    done = weft("top", where=tmp_path / "none")
    assert done.returncode == 1
    assert done.stderr.startswith("weft: cannot list")
    for wrong in (["x"], ["--interval", "0"], ["--sort", "x"], ["--count", "0"]):
        assert weft("top", *wrong, where=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("words", "rank", "wanted"),
    [
        (["ring", "--rounds", "1000000000"], {}, ["0", "1", "2"]),
        # Nothing listens there: the example dials until the test ends it.
        (["ring_of_hosts", "--open", "127.0.0.1", "--port", "1"], {"RANK": "5"}, ["5"]),
    ],
)
def test_top__names_the_ranks_of_examples(
    tmp_path: Path, words: list[str], rank: dict[str, str], wanted: list[str]
) -> None:
    clean = clean_environment()
    settings = {"WEFT_TELEMETRY": str(tmp_path), "WEFT_INTERFACES": "lo", "WEFT_PATHS": "4"}
    process = subprocess.Popen(
        [sys.executable, "-m", f"transport.examples.{words[0]}", *words[1:]],
        cwd=ROOT,
        env=clean | settings | rank,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def ranks() -> list[str]:
        return sorted(one.rank for one in rates(None, read(tmp_path).of_running()))

    with running(process):
        until(lambda: ranks() == wanted, lambda: str(ranks()))


@pytest.mark.parametrize("name", ["ring", "ring_of_hosts"])
def test_help__of_examples_says_the_default_of_each_option(name: str) -> None:
    command = import_module(f"transport.examples.{name}").main
    for option in [one for one in command.params if isinstance(one, click.Option)]:
        assert option.help, option.name
        assert option.is_flag or option.show_default, option.name
