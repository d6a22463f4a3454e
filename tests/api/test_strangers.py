"""Tests unauthenticated peers, which lack the secret, keep sockets idle, or send wrong frames."""

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import frames
from tests.api.support import LOCAL, PATIENCE_S, child, content, line, pair, relay, running
from tests.waiting import until
from transport import Connection, Endpoint, Listener
from transport.endpoint.endpoint import _wait_until
from transport.endpoint.timeouts import deadline
from transport.errors import (
    AuthenticationError,
    PeerDeadError,
    RefusedError,
    TimedOutError,
)

LOCALHOST = "127.0.0.1"


def secret(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "secret"
    file.write_bytes(content(32, 1))
    file.chmod(0o600)
    return {"secret_file": str(file)}


@pytest.mark.parametrize("to", ["itself", "another"])
def test_relay__of_a_handshake_gets_nobody_in(tmp_path: Path, to: str) -> None:
    """A dial fails if a relay forwards its handshake to some other listener."""
    knobs = LOCAL | secret(tmp_path)
    with Endpoint(**knobs) as victim, Endpoint(**knobs) as other:
        target = victim if to == "itself" else other
        with target.listen(open=True) as listener, relay(listener.port) as port:
            with pytest.raises(AuthenticationError, match="relay"):
                victim.connect(LOCALHOST, port, timeout_s=PATIENCE_S)
            with pytest.raises(TimedOutError):
                listener.accept(timeout_s=0.2)
            # Without the relay, the same endpoints can connect.
            connection = victim.connect(LOCALHOST, listener.port, timeout_s=PATIENCE_S)
            connection.isend(b"hello")
            assert listener.accept(timeout_s=PATIENCE_S).recv(5, timeout_s=PATIENCE_S) == b"hello"


def test_secret__keeps_frames_from_whoever_reads_along(tmp_path: Path) -> None:
    """With a secret, frames are encrypted, so that a relay sees no tokens and names."""
    knobs = LOCAL | secret(tmp_path)
    with Endpoint(**knobs) as endpoint, socket.create_server((LOCALHOST, 0)) as server:
        _, dial = endpoint._dial(LOCALHOST, server.getsockname()[1], 0)
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(1) == b"\x16"  # the first byte of a TLS handshake
            accepted.sendall(frames.hello())
            with pytest.raises(AuthenticationError):
                _wait_until(
                    lambda: endpoint._reached("it", dial, []), dial.wait, deadline(PATIENCE_S)
                )


def test_refusal__of_a_stranger_is_cleaned(capfd: pytest.CaptureFixture[str]) -> None:
    text = b"\x1b[31mforged\nweft error: line\xff\xfe" + b"x" * 400
    with Endpoint(**LOCAL) as endpoint, socket.create_server((LOCALHOST, 0)) as server:
        _, dial = endpoint._dial(LOCALHOST, server.getsockname()[1], 0)
        accepted, _ = server.accept()
        with accepted:
            frames.read_frames(accepted, 1)
            accepted.sendall(frames.refuse(text))
            with pytest.raises(RefusedError, match=r"\?\[31mforged\?weft error: line\?\?xxx"):
                _wait_until(
                    lambda: endpoint._reached("it", dial, []), dial.wait, deadline(PATIENCE_S)
                )
    logged = capfd.readouterr().err
    assert "\x1b" not in logged
    assert all(one.startswith("weft ") for one in logged.splitlines())


def test_refusal__that_is_too_long_or_comes_again_and_again_is_one_line() -> None:
    with running(child("listening")) as peer:
        port = int(line(peer).split()[1])
        for _ in range(200):
            with socket.create_connection((LOCALHOST, port), timeout=PATIENCE_S) as stranger:
                stranger.sendall(frames.refuse(b"no" * 100) + frames.refuse(b"x" * 60_000))
                with contextlib.suppress(ConnectionResetError):
                    stranger.recv(4096)
        peer.kill()
        _, err = peer.communicate(timeout=PATIENCE_S)
        assert len(err.splitlines()) <= 6, err


@pytest.mark.parametrize(("limit", "many"), [(256, 10_000), (0, 10_000)])
def test_knocking__by_the_thousand_keeps_nobody_out(limit: int, many: int) -> None:
    """10,000 idle sockets do not keep out a peer that sends a hello, at any descriptor limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < many + 200:
        pytest.skip(f"the hard limit on descriptors is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many + 200), hard))
    arguments = [str(limit)] if limit else []
    try:
        with running(child("listening", *arguments)) as peer, contextlib.ExitStack() as held:
            handle, port = line(peer).split()
            for _ in range(many):
                stranger = held.enter_context(socket.socket())
                stranger.setblocking(False)
                stranger.connect_ex((LOCALHOST, int(port)))
            with Endpoint(**LOCAL) as endpoint:
                endpoint.connect(bytes.fromhex(handle), timeout_s=PATIENCE_S).close()
            assert peer.stdin is not None
            peer.stdin.write("\n")
            peer.stdin.flush()
            assert int(line(peer).split()[0]) > 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cut_at_confirm(box: socket.socket, port: int) -> None:
    """A middlebox that drops the dialler's confirm frame and then closes both sockets."""
    near, _ = box.accept()
    far = socket.create_connection((LOCALHOST, port))

    def back() -> None:
        with contextlib.suppress(OSError):
            while piece := far.recv(65536):
                near.sendall(piece)

    threading.Thread(target=back, daemon=True).start()
    buffer = b""
    while True:
        buffer += near.recv(65536)
        while len(buffer) >= frames.HEADER.size:
            _, _, kind, size, _ = frames.HEADER.unpack_from(buffer)
            if len(buffer) < frames.HEADER.size + size:
                break
            if kind == frames.CONFIRM:
                for end in (near, far):
                    end.shutdown(socket.SHUT_RDWR)
                    end.close()
                return
            far.sendall(buffer[: frames.HEADER.size + size])
            buffer = buffer[frames.HEADER.size + size :]


def reached(endpoint: Endpoint, name: str, dial: Any) -> Connection:
    """Waits until a connect that was begun has succeeded; returns the connection."""
    made: list[Connection] = []
    assert _wait_until(lambda: endpoint._reached(name, dial, made), dial.wait, deadline(PATIENCE_S))
    return made[0]


@contextlib.contextmanager
def greeted(port: int, **words: Any) -> Iterator[socket.socket]:
    """Opens a control socket from this test and completes the hello for a new session."""
    with socket.create_connection((LOCALHOST, port), timeout=PATIENCE_S) as one:
        one.settimeout(PATIENCE_S)
        one.sendall(frames.hello(**words))
        assert frames.read_frames(one, 1)[0][0] == frames.HELLO_REPLY
        yield one


@contextlib.contextmanager
def opened(listener: Listener) -> Iterator[tuple[socket.socket, Connection]]:
    """Opens a connection through a control socket of this test; yields both."""
    with greeted(listener.port) as one:
        one.sendall(frames.open_frame(1))
        assert frames.read_frames(one, 1)[0][0] == frames.OPEN_REPLY
        one.sendall(frames.confirm(1))
        yield one, listener.accept(timeout_s=PATIENCE_S)


def test_open__that_names_somebody_else_sends_nothing_there() -> None:
    ports = range(40_000, 40_008)
    with contextlib.ExitStack() as held:
        third = [
            held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in ports
        ]
        for one, port in zip(third, ports, strict=True):
            one.bind(("127.0.0.9", port))
            one.settimeout(0.05)
        endpoint = held.enter_context(Endpoint(**LOCAL))
        listener = held.enter_context(endpoint.listen(open=True))
        stranger = held.enter_context(greeted(listener.port))
        stranger.sendall(frames.open_frame(1, address="127.0.0.9"))
        assert frames.read_frames(stranger, 1)[0][0] == frames.OPEN_REPLY
        time.sleep(0.5)  # time in which nothing may be sent
        for one in third:
            with pytest.raises(TimeoutError):
                one.recv(100)


def test_open__again_and_again_without_a_confirmation_is_bounded() -> None:
    with pair() as (here, there):
        endpoint = there._owner
        with endpoint.listen(open=True) as listener, greeted(listener.port) as one:
            for dial in range(1, 200):
                one.sendall(frames.open_frame(dial, peer=dial))
            kinds = [kind for kind, _ in frames.read_frames(one, 199)]
            assert kinds.count(frames.OPEN_REPLY) == 32
            assert kinds.count(frames.REFUSE) == 167
            # An open frame that is repeated gets the same answer and opens no second connection.
            one.sendall(frames.open_frame(1, peer=1))
            assert frames.read_frames(one, 1)[0][0] == frames.OPEN_REPLY
            here.isend(data := content(1_000_000, 1))
            assert there.recv(len(data), timeout_s=PATIENCE_S) == data


@pytest.mark.parametrize(("sessions", "opens"), [(64, 32), (250, 9)])
def test_open__stalled_by_the_thousand_in_many_sessions_keeps_nobody_out(
    sessions: int, opens: int
) -> None:
    """If the table of half-open connections is full, a real peer replaces the oldest entries."""
    with pair() as (here, there), contextlib.ExitStack() as held:
        listener = held.enter_context(there._owner.listen(open=True))
        kinds: list[int] = []
        for session in range(1, sessions + 1):
            one = held.enter_context(greeted(listener.port, node=session, session=session))
            for dial in range(1, opens + 1):
                one.sendall(frames.open_frame(dial, peer=dial))
            kinds += [kind for kind, _ in frames.read_frames(one, opens)]
        assert kinds.count(frames.OPEN_REPLY) == sessions * opens >= 2048
        endpoint = held.enter_context(Endpoint(**LOCAL))
        dials = [endpoint._dial(listener.handle, None, 0) for _ in range(16)]
        made = [reached(endpoint, *begun) for begun in dials]
        for number, connection in enumerate(made):
            connection.send(bytes([number]), timeout_s=PATIENCE_S)
        accepted = [listener.accept(timeout_s=PATIENCE_S) for _ in made]
        seen = {each.recv(1, timeout_s=PATIENCE_S) for each in accepted}
        assert seen == {bytes([number]) for number in range(16)}
        here.isend(data := content(1_000_000, 1))
        assert there.recv(len(data), timeout_s=PATIENCE_S) == data


def test_session__that_is_only_held_gives_its_sockets_up() -> None:
    """Sessions without a connection are closed if the listener runs out of descriptors."""
    with running(child("listening", "256")) as peer, contextlib.ExitStack() as held:
        _, port = line(peer).split()
        for number in range(1, 400):
            address = (LOCALHOST, int(port))
            one = held.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            with contextlib.suppress(ConnectionError):  # the listener may have closed it already
                one.sendall(frames.hello(node=number, session=number) + frames.open_frame(1))
        with Endpoint(**LOCAL) as endpoint:
            connection = endpoint.connect(LOCALHOST, int(port), timeout_s=PATIENCE_S)
            connection.check()
        assert peer.stdin is not None
        peer.stdin.write("\n")
        peer.stdin.flush()
        # The endpoint connected last, so the listener has accepted all 399 sockets by now.
        assert int(line(peer).split()[0]) > 399 - 256


def test_session__outlives_a_cut_as_its_first_confirmation_passes() -> None:
    """A connection opens although a middlebox drops the first confirm frame and both sockets."""
    with (
        Endpoint(**LOCAL) as there,
        there.listen(open=True) as listener,
        Endpoint(**LOCAL) as here,
        socket.create_server((LOCALHOST, 0)) as box,
    ):
        thread = threading.Thread(target=cut_at_confirm, args=[box, listener.port])
        thread.start()
        connection = here.connect(LOCALHOST, box.getsockname()[1], timeout_s=PATIENCE_S)
        send = connection.isend(b"hello")
        accepted = listener.accept(timeout_s=PATIENCE_S)
        assert accepted.recv(5, timeout_s=PATIENCE_S) == b"hello"
        send.wait(PATIENCE_S)
        thread.join()


def test_open__that_comes_late_once_more_harms_no_connection() -> None:
    """An open frame that arrives again after the connection exists has no effect."""
    with (
        Endpoint(**LOCAL) as endpoint,
        endpoint.listen(open=True) as listener,
        opened(listener) as (one, connection),
    ):
        one.sendall(frames.open_frame(1) + frames.ping(9))
        assert [kind for kind, _ in frames.read_frames(one, 1)] == [frames.PONG]
        connection.check()
        with pytest.raises(TimedOutError):
            listener.accept(timeout_s=0.2)


@pytest.mark.parametrize("status", [0, 1, 999])
def test_verdict__that_is_no_end_ends_the_session_as_a_farewell(status: int) -> None:
    with (
        Endpoint(**LOCAL) as endpoint,
        endpoint.listen(open=True) as listener,
        opened(listener) as (one, connection),
    ):
        one.sendall(frames.verdict(status))
        with pytest.raises(PeerDeadError):
            connection.recv(10, timeout_s=PATIENCE_S)


def test_session__without_a_connection_gives_way_to_others() -> None:
    """Too many sessions: the oldest are dropped, but not one that has a connection."""
    with pair() as (here, there), contextlib.ExitStack() as held:
        listener = held.enter_context(there._owner.listen(open=True))
        unused = [
            held.enter_context(greeted(listener.port, node=number, session=number))
            for number in range(1, 257)
        ]
        time.sleep(1.2)  # longer than a session without a connection is protected
        unused += [
            held.enter_context(greeted(listener.port, node=number, session=number))
            for number in range(257, 277)
        ]
        ended: set[socket.socket] = set()

        def twenty_ended() -> bool:
            for one in unused[:256]:
                one.settimeout(0.001)
                if frames.VERDICT in [kind for kind, _ in frames.read_frames(one, 1)]:
                    ended.add(one)
            return len(ended) >= 20

        until(twenty_ended, lambda: f"{len(ended)} sessions have ended")
        assert len(ended) == 20
        here.isend(data := content(100_000, 1))
        assert there.recv(len(data), timeout_s=PATIENCE_S) == data


def test_session__of_somebody_else_cannot_be_joined() -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen(open=True) as listener:
        with greeted(listener.port, node=1, session=5):
            for joined in (1, 2**63):
                address = (LOCALHOST, listener.port)
                with socket.create_connection(address, timeout=PATIENCE_S) as other:
                    other.sendall(frames.hello(node=1, session=5, joined=joined))
                    assert frames.read_frames(other, 1)[0][0] == frames.REFUSE
        address = (LOCALHOST, listener.port)
        with socket.create_connection(address, timeout=PATIENCE_S) as other:
            other.sendall(frames.hello(target=12345))
            kind, body = frames.read_frames(other, 1)[0]
            assert (kind, b"gone" in body) == (frames.REFUSE, True)


def test_frames__of_any_kind_leave_the_listener_well() -> None:
    """Frames with random bodies, with and without a hello, do not affect the real peer."""
    with pair() as (here, there), there._owner.listen(open=True) as listener:
        address = (LOCALHOST, listener.port)
        for seed in range(60):
            body = content(seed * 7 % 300, seed)
            for kind in range(12):
                with (
                    contextlib.suppress(ConnectionResetError, BrokenPipeError),
                    socket.create_connection(address, timeout=PATIENCE_S) as one,
                ):
                    one.settimeout(0.001)
                    if seed % 2:
                        one.sendall(frames.hello(node=seed + 1, session=kind + 1))
                    one.sendall(frames.frame(kind, body))
                    frames.read_frames(one, 2)
        here.isend(b"still here")
        assert there.recv(10, timeout_s=PATIENCE_S) == b"still here"
        with pytest.raises(RefusedError):
            here._owner.connect(LOCALHOST, 1, timeout_s=PATIENCE_S)
