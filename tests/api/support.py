"""Helpers of the API tests: verifiable contents, connected pairs, child processes."""

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.environment import clean_environment
from tests.waiting import PATIENCE_S as PATIENCE_S, until
from transport import Connection, Endpoint

ROOT = Path(__file__).resolve().parents[2]
LOCAL: dict[str, Any] = {"interfaces": "lo", "engines": 1}


def content(size_bytes: int, seed: int) -> bytes:
    """Random bytes from a seed."""
    return np.random.default_rng(seed).bytes(size_bytes)


@contextmanager
def pair(**knobs: Any) -> Iterator[tuple[Connection, Connection]]:
    """Two endpoints of this process, with a connection between them."""
    settings = LOCAL | knobs
    with (
        Endpoint(**settings) as left,
        Endpoint(**settings) as right,
        right.listen() as listener,
        left.connect(listener.handle) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        yield here, there


def child(
    role: str,
    *arguments: str,
    launcher: tuple[str, ...] = (),
    module: str = "tests.api.peer",
    **variables: str,
) -> subprocess.Popen[str]:
    """Starts a module of peers as a child with pipes; `launcher`: words before its command."""
    clean = clean_environment()
    return subprocess.Popen(
        [*launcher, sys.executable, "-m", module, role, *arguments],
        cwd=ROOT,
        env=clean | {"WEFT_INTERFACES": "lo", "WEFT_ENGINES": "1"} | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Yields the child process, and kills it at the end of the `with`."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


def line(process: subprocess.Popen[str]) -> str:
    """The child's next line; AssertionError with its stderr if there is none."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    if not ready:
        process.kill()
        raise AssertionError(f"the child printed nothing: {process.communicate()[1]}")
    text = process.stdout.readline().strip()
    if not text:
        process.kill()
        raise AssertionError(f"the child ended: {process.communicate()[1]}")
    return text


@contextmanager
def relay(port: int, seen: bytearray | None = None) -> Iterator[int]:
    """Runs a relay that forwards bytes between its clients and `port`; yields the relay's port.

    `seen` gets all bytes that pass.
    """
    ended = threading.Event()
    sockets: list[socket.socket] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if seen is not None:
                    seen.extend(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while not ended.is_set():
                near, _ = server.accept()
                far = socket.create_connection(("127.0.0.1", port))
                sockets.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=[server], daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            ended.set()
            for one in sockets:
                one.close()


class Log:
    """The log of a child process, read from its standard error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.descriptor = process.stderr.fileno()
        self.text = ""

    def take(self, words: str) -> str:
        """Waits for a line that contains `words` and returns it; earlier lines are dropped."""
        return until(partial(self._look, words), lambda: f"no line has {words!r}: {self.text}")

    def _look(self, words: str) -> str:
        *lines, rest = self.text.split("\n")
        for number, found in enumerate(lines):
            if words in found:
                self.text = "\n".join([*lines[number + 1 :], rest])
                return found
        if select.select([self.descriptor], [], [], 1)[0]:
            more = os.read(self.descriptor, 65536)
            assert more, f"the child closed its log: {self.text}"
            self.text += more.decode()
        return ""
