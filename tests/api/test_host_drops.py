"""Tests that datagrams which the kernel drops at full sockets are in the trace of their process."""

from __future__ import annotations

import time
from pathlib import Path

from tests.api.support import LOCAL, PATIENCE_S, child, content, line, running
from tests.stopping import stopped
from tests.waiting import until
from transport import Endpoint
from transport.trace import open_store


def kernel_drops(pid: int) -> int:
    """Datagrams that the kernel dropped at the UDP sockets of a process (proc_net_udp, drops)."""
    inodes = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        target = str(one.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = (row.split() for row in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:])
    return sum(int(row[12]) for row in rows if row[9] in inodes)


def sleeps(pid: int) -> bool:
    """Whether the main thread of a process sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_host_drops__are_events_of_the_trace(tmp_path: Path) -> None:
    """What comes while the receiver is stopped does not fit in the smallest buffer."""
    traces = str(tmp_path)
    data = content(8_000_000, 1)
    with running(
        child("echo", WEFT_PATHS="2", WEFT_SOCKET_BUFFER_BYTES="65536", WEFT_TRACE=traces)
    ) as peer:
        with (
            Endpoint(**LOCAL, paths=2) as endpoint,
            endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S) as connection,
        ):
            connection.send(b"begin", timeout_s=PATIENCE_S)
            assert connection.recv(5, timeout_s=PATIENCE_S) == b"begin"
            # Let the peer post its next receive: without one only keepalives fill its buffers.
            until(lambda: sleeps(peer.pid), "the peer does not wait for a message")
            time.sleep(0.1)  # it may have slept in the send of its answer
            with stopped(peer.pid):
                send = connection.isend(data)
                receive = connection.irecv_into(back := bytearray(len(data)))
                until(lambda: kernel_drops(peer.pid) > 0, "the kernel drops nothing")
            send.wait(PATIENCE_S)
            receive.wait(PATIENCE_S)
            assert bytes(back) == data
            dropped = kernel_drops(peer.pid)
        assert peer.wait(PATIENCE_S) == 0
    with open_store(tmp_path) as store:
        ((counted,),) = store.rows("SELECT sum(value) FROM events WHERE what = 'host_drops'")
    assert 0 < counted <= dropped
