"""Tests the log: lines about peers, and a standard error pipe that is full and not read."""

import signal
import socket
import subprocess
import sys

from tests.api.support import LOCAL, PATIENCE_S, ROOT, Log, child, line, running
from transport import Endpoint

# Standard error is a pipe that is full from the start. Both the engine thread (a datagram of an
# unknown sender) and the control thread (a connection without authentication) log to it.
SCRIPT = f"""
import os, re, socket
from transport import Endpoint

os.set_blocking(2, False)
for size in (4096, 1):
    try:
        while True:
            os.write(2, b"x" * size)
    except BlockingIOError:
        pass
os.set_blocking(2, True)

def data_ports():
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink("/proc/self/fd/" + name))
        except OSError:
            pass
    for line in open("/proc/self/net/udp").read().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{{fields[9]}}]" in own:
            yield int(fields[1].split(":")[1], 16)

settings = {LOCAL!r} | {{"log_level": "debug"}}
with Endpoint(**settings) as left, Endpoint(**settings) as right, right.listen() as listener:
    for turn in range(3):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for port in data_ports():
                stranger.sendto(b"nothing of yours" * 4, ("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1" * 10)
            stranger.settimeout({PATIENCE_S})
            try:
                stranger.recv(1)
            except ConnectionError:
                pass
        with left.connect(listener.handle, timeout_s={PATIENCE_S}) as here:
            with listener.accept(timeout_s={PATIENCE_S}) as there:
                for size in (1, 100_000, 1 << 20):
                    handle = there.irecv_into(bytearray(size))
                    here.send(bytes(size), timeout_s={PATIENCE_S})
                    assert handle.wait({PATIENCE_S}) == size
    assert right.counters().strangers_refused >= 3
print("moved", flush=True)
"""


def test_log__full_standard_error_stalls_nothing() -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=theirs.fileno(),
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.wait(2 * PATIENCE_S) == 0
            assert process.stdout.read() == "moved\n"
        finally:
            process.kill()


def test_log__names_peers_that_connect_and_close() -> None:
    with running(child("echoes", WEFT_LOG_LEVEL="info")) as process:
        handle, log = bytes.fromhex(line(process)), Log(process)
        for _ in range(2):  # the full pipe must not affect a second peer either
            with Endpoint(**LOCAL) as endpoint, endpoint.connect(handle) as connection:
                connection.send(b"hello")
                assert connection.recv(8) == b"hello"
                assert "127.0.0.1" in log.take("connected to ")
            assert "127.0.0.1" in log.take("disconnected from ")


def test_log__says_that_this_end_was_closed() -> None:
    """Both ends close at about the same time; the child logs one line, about its own close."""
    with running(child("echo", WEFT_LOG_LEVEL="info")) as process:
        with Endpoint(**LOCAL) as endpoint:
            with endpoint.connect(bytes.fromhex(line(process))) as connection:
                connection.send(b"hello")
                assert connection.recv(8) == b"hello"
            assert process.wait(timeout=PATIENCE_S) == 0
        assert process.stderr is not None
        lines = [each for each in process.stderr if "disconnected from 127.0.0.1" in each]
        assert len(lines) == 1
        assert "this endpoint was closed" in lines[0]


def test_log__names_a_peer_that_was_killed() -> None:
    with running(child("echoes", WEFT_LOG_LEVEL="info")) as process:
        handle, log = line(process), Log(process)
        with running(child("posts_and_sleeps", handle, "1")) as other:
            assert line(other) == "posted"
            log.take("connected to ")
            other.send_signal(signal.SIGKILL)
            other.wait(timeout=PATIENCE_S)
            assert "127.0.0.1" in log.take("disconnected from ")
        with Endpoint(**LOCAL) as endpoint, endpoint.connect(bytes.fromhex(handle)) as connection:
            connection.send(b"hello")  # the child still serves other peers
            assert connection.recv(8) == b"hello"
