"""Tests failures: signals, dead peers, bad packets, wrong settings, injected faults."""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, child, content, line, pair, running
from tests.waiting import until
from transport import Endpoint, KnobError, WeftError
from transport.endpoint.endpoint import _wait_until
from transport.endpoint.knobs import KnobWord
from transport.endpoint.timeouts import deadline
from transport.errors import (
    AddressError,
    AuthenticationError,
    ConnectionLostError,
    ForkedChildError,
    PeerDeadError,
    RefusedError,
    TimedOutError,
    VersionMismatchError,
)


@pytest.mark.parametrize("role", ["blocked", "accepting"])
def test_interrupt__reaches_a_blocked_call(role: str) -> None:
    with running(child(role)) as peer, Endpoint(**LOCAL) as endpoint:
        if role == "blocked":
            connection = endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S)
            assert not connection.closed
        assert line(peer) == "blocked"
        time.sleep(0.2)  # so that it blocks; a signal that comes earlier is caught as well
        peer.send_signal(signal.SIGINT)
        assert line(peer) == "interrupted"
        out, err = peer.communicate(timeout=PATIENCE_S)
        assert (out, err, peer.returncode) == ("", "", 0)


def test_death__fails_every_outstanding_request() -> None:
    with running(child("silent")) as peer, Endpoint(**LOCAL) as endpoint:
        connection = endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S)
        assert line(peer) == "accepted"
        handles = [connection.irecv_into(bytearray(10)) for _ in range(20)]
        handles += [connection.isend(bytes(1 << 20)) for _ in range(200)]
        time.sleep(0.1)  # time in which none of them may be done
        assert not any(handle.done for handle in handles)
        peer.kill()
        # The kernel closed the peer's sockets, which proves its death: no PeerSilentError.
        for handle in handles:
            with pytest.raises(
                PeerDeadError, match=r"^(send to|receive from) 127\.0\.0\.1 port \d+: the peer"
            ):
                handle.wait(PATIENCE_S)
        with pytest.raises(ConnectionLostError):
            connection.check()


def udp_ports(pid: int) -> list[int]:
    """The UDP ports of a process, from /proc."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(entry)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    for table in ("udp", "udp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            cells = row.split()
            if cells[9] in inodes:
                ports.append(int(cells[1].split(":")[1], 16))
    return ports


def test_strangers__are_counted_and_change_nothing() -> None:
    with running(child("listening", WEFT_HANDSHAKE_TIMEOUT_NS="2000000000")) as peer:
        handle, port = line(peer).split()
        assert peer.stdin is not None
        with Endpoint(**LOCAL) as endpoint:
            for noise in (b"GET / HTTP/1.0\r\n\r\n", b"\0" * 4096, content(200, 1), b"W"):
                address = ("127.0.0.1", int(port))
                with socket.create_connection(address, timeout=PATIENCE_S) as stranger:
                    stranger.sendall(noise)
                    # The listener closes or refuses the socket; it does not keep it open.
                    with contextlib.suppress(ConnectionResetError):
                        stranger.recv(4096)
            # Data ports are opened with the first peer, so connect one.
            with endpoint.connect(bytes.fromhex(handle), timeout_s=PATIENCE_S):
                noise_ports = udp_ports(peer.pid)
                assert noise_ports
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    for data_port in noise_ports:
                        for noise in (b"x", content(100, 2), bytes(1400)):
                            stranger.sendto(noise, ("127.0.0.1", data_port))
                stdin = peer.stdin

                def all_counted() -> bool:
                    stdin.write("\n")
                    stdin.flush()
                    refused, ignored = map(int, line(peer).split())
                    return refused >= 4 and ignored >= len(noise_ports)

                until(all_counted, "strangers are not counted")


def test_version__of_another_peer_is_refused_without_a_hang() -> None:
    magic = b"WFTC"
    other = magic + struct.pack("<HHII", 999, 1, 0, 0)
    with Endpoint(**LOCAL) as endpoint:
        # As listener, the endpoint answers with its own version and closes the connection.
        with endpoint.listen() as listener:
            address = ("127.0.0.1", listener.port)
            with socket.create_connection(address, timeout=PATIENCE_S) as stranger:
                stranger.sendall(other)
                answer = b""
                for _ in range(100):
                    piece = stranger.recv(4096)
                    answer += piece
                    if not piece:
                        break
                assert answer.startswith(magic)
                assert struct.unpack_from("<H", answer, 4)[0] != 999
        # As dialler: connecting fails with VersionMismatchError.
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(PATIENCE_S)
            _, dial = endpoint._dial("127.0.0.1", server.getsockname()[1], 0)
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(other)
                made: list[Any] = []
                with pytest.raises(VersionMismatchError):
                    _wait_until(
                        lambda: endpoint._reached("other", dial, made),
                        dial.wait,
                        deadline(PATIENCE_S),
                    )


def test_connect__to_one_who_never_answers_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with Endpoint(**LOCAL) as endpoint, pytest.raises(TimedOutError, match=r"127\.0\.0\.1"):
            endpoint.connect("127.0.0.1", port, timeout_s=0.2)
        # The kernel accepts connections for a stalled process, too: the key stall limits the wait.
        knobs: dict[str, Any] = {
            "handshake_timeout_ns": "100ms",
            "peer_timeout": {"stall": "300ms"},
        }
        with Endpoint(**LOCAL, **knobs) as endpoint, pytest.raises(WeftError, match="handshake"):
            endpoint.connect("127.0.0.1", port, timeout_s=PATIENCE_S)


def test_connect__to_nobody_and_to_somebody_else_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Endpoint(**LOCAL) as endpoint:
            _, dial = endpoint._dial("127.0.0.1", port, 0)
            accepted, _ = other.accept()
            with accepted:
                accepted.sendall(b"SSH-2.0-other\r\n")
                with pytest.raises(RefusedError, match="not weft"):
                    _wait_until(
                        lambda: endpoint._reached("other", dial, []),
                        dial.wait,
                        deadline(PATIENCE_S),
                    )
    with Endpoint(**LOCAL) as endpoint, pytest.raises(RefusedError, match=str(port)):
        endpoint.connect("127.0.0.1", port, timeout_s=PATIENCE_S)


def test_settings__unknown_interface_says_which_and_what_there_is() -> None:
    with pytest.raises(AddressError, match=r"nosuch0.*lo"):
        Endpoint(interfaces="nosuch0")


def test_settings__port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Endpoint(**LOCAL) as endpoint:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=str(port)):
            endpoint.listen(port)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"pahts": 8}, "^pahts is not a setting.*did you mean paths"),
        ({"paths": 257}, "WEFT_PATHS.*257.*1..256"),
        ({"paths": "many"}, "WEFT_PATHS.*many"),
        ({"fault": {"loss": 2}}, "WEFT_FAULT=loss=2: out of range"),
        ({"fault": "los=0.1"}, "there is no key 'los'; allowed: seed, loss, reorder"),
        ({"fault": "loss=0.1,loss=0.2"}, "key 'loss' is given twice"),
        ({"fault_loss": 0.1}, r'fault_loss is not a setting of weft.* fault={"loss": \.\.\.}'),
        ({"handshake_timeout_ns": "5m"}, "WEFT_HANDSHAKE_TIMEOUT_NS=5m: .*unit"),
        ({"family": "ipx"}, "WEFT_FAMILY.*ipx"),
        ({"rto": {"min": "2s", "max": "1s"}}, "RTO"),
        ({"window_policy": "nosuch"}, "nosuch"),
    ],
)
def test_settings__knobs_are_checked(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Endpoint(interfaces="lo", **knobs)
    assert isinstance(caught.value, WeftError)


def test_settings__keywords_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PATHS", "5")
    with pair() as (here, _):
        assert len(here.counters().paths) == 5
    with pair(paths=2, ecn=False) as (here, _):
        assert len(here.counters().paths) == 2
    monkeypatch.setenv("WEFT_PEER_TIMEOUT", "silence=1h,dead=1us")
    with pytest.raises(KnobError, match="WEFT_PEER_TIMEOUT=dead=1us: out of range"):
        Endpoint(interfaces="lo", peer_timeout={"dead": "3s"})
    monkeypatch.setenv("WEFT_RTO", "min=2s,max=3s")
    monkeypatch.delenv("WEFT_PEER_TIMEOUT")
    with pytest.raises(KnobError, match="WEFT_RTO=min=2s,max=1s"):
        Endpoint(interfaces="lo", rto={"max": 1_000_000_000})
    monkeypatch.setenv("WEFT_PATHS", "none")
    with pytest.raises(KnobError, match="WEFT_PATHS"):
        Endpoint(interfaces="lo")


FAULTS: dict[str, dict[str, KnobWord]] = {
    "loss": {"loss": 0.02},
    "reorder": {"reorder": 0.05},
    "duplicate": {"duplicate": 0.05},
    "corrupt": {"corrupt": 0.02},
    "all": {"loss": 0.02, "reorder": 0.05, "duplicate": 0.02, "corrupt": 0.01},
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults__content_is_right(name: str) -> None:
    sizes = [0, 1, 5_000, 100_000, 1_000_000, 0, 9, 4_000_000, 77_777]
    knobs = {"payload_crc": "on"} if name == "corrupt" else {}
    with pair(fault=FAULTS[name] | {"seed": 7}, **knobs) as (here, there):

        def exchange() -> None:
            memory = [bytearray(size) for size in sizes]
            receives = [there.irecv_into(one) for one in memory]
            back = [here.irecv_into(bytearray(size)) for size in sizes]
            sends = [here.isend(content(size, i)) for i, size in enumerate(sizes)]
            sends += [there.isend(content(size, i)) for i, size in enumerate(sizes)]
            for request in (*sends, *receives, *back):
                request.wait(PATIENCE_S)
            for i, size in enumerate(sizes):
                assert bytes(memory[i]) == content(size, i)

        def all_happened() -> bool:
            """Exchanges messages; says whether each fault has hit one, which depends on chance."""
            exchange()
            counters, of_endpoint = here.counters(), here._owner.counters()
            happened = [getattr(of_endpoint, f"injected_{fault}") for fault in FAULTS[name]]
            if "loss" in FAULTS[name]:
                happened += [counters.segments_lost, counters.segments_resent]
            if "corrupt" in FAULTS[name]:
                happened.append(of_endpoint.bad_crc)
            return all(happened)

        until(all_happened, "a fault has not happened")


def test_secret__must_be_the_same(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("right", "wrong")]
    for i, file in enumerate(files):
        file.write_bytes(content(32, i))
        file.chmod(0o600)
    right, wrong = ({"secret_file": str(file)} for file in files)
    with Endpoint(**LOCAL, **right) as server, server.listen() as listener:
        for knobs in (wrong, {}):
            with Endpoint(**LOCAL, **knobs) as endpoint, pytest.raises(AuthenticationError):
                endpoint.connect(listener.handle, timeout_s=PATIENCE_S)
        with Endpoint(**LOCAL, **right) as endpoint:
            connection = endpoint.connect(listener.handle, timeout_s=PATIENCE_S)
            accepted = listener.accept(timeout_s=PATIENCE_S)
            connection.isend(b"hello")
            assert accepted.recv(5, timeout_s=PATIENCE_S) == b"hello"
        assert server.counters().strangers_refused >= 2
    with Endpoint(**LOCAL) as server, Endpoint(**LOCAL, **right) as endpoint:
        listener = server.listen()
        with pytest.raises(AuthenticationError):
            endpoint.connect(listener.handle, timeout_s=PATIENCE_S)
    with pytest.raises(WeftError, match="absent"):
        Endpoint(**LOCAL, secret_file=str(tmp_path / "absent"))


def test_exhaustion__of_descriptors_is_said() -> None:
    with running(child("few_descriptors", "40")) as peer:
        out, err = peer.communicate(timeout=PATIENCE_S)
        assert out.startswith("out_of_descriptors"), (out, err)
        assert "descriptor" in out
        assert all("paths instead of 32" in each for each in err.splitlines()), err
        assert peer.returncode == 0


@pytest.mark.parametrize("spare_mib", ["8", "62", "64", "96"])
def test_exhaustion__of_memory_ends_an_attempt_and_nothing_else(spare_mib: str) -> None:
    with running(child("little_memory", spare_mib)) as peer:
        out, err = peer.communicate(timeout=PATIENCE_S)
        assert len(out.split()) == 3, (peer.returncode, out, err)
        how, first_still_works, others_were_made = out.split()
        assert how in ("MemoryError", "out_of_memory", "timed_out"), (out, err)
        assert (first_still_works, others_were_made) == ("True", "True")
        assert peer.returncode == 0, err


def ended(pid: int) -> int:
    """The exit code of a forked child, which is killed if it hangs."""
    found = (0, 0)

    def has_ended() -> bool:
        nonlocal found
        found = os.waitpid(pid, os.WNOHANG)
        return found[0] != 0

    try:
        until(has_ended, "the child hangs")
    finally:
        if not found[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(found[1])


def test_fork__child_is_refused_and_harms_nobody() -> None:
    with pair() as (here, there):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                here.send(b"from the child")
            except ForkedChildError:
                code = 0
            finally:
                os._exit(code)
        assert ended(pid) == 0
        here.isend(b"still here")
        assert there.recv(10, timeout_s=PATIENCE_S) == b"still here"


def test_fork__child_closes_although_a_thread_held_the_endpoints_lock() -> None:
    held, over = threading.Event(), threading.Event()
    with Endpoint(**LOCAL) as endpoint, endpoint.listen():

        def holds() -> None:
            with endpoint._gate:
                held.set()
                over.wait(PATIENCE_S)

        thread = threading.Thread(target=holds)
        thread.start()
        assert held.wait(PATIENCE_S)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                endpoint.close()
                code = 0
            finally:
                os._exit(code)
        try:
            assert ended(pid) == 0
        finally:
            over.set()
            thread.join(PATIENCE_S)
