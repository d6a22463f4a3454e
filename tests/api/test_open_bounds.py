"""Tests what peers that are not authenticated can make a listener send and hold."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.api import frames
from tests.api.support import LOCAL, PATIENCE_S, content, pair, relay
from tests.api.test_strangers import greeted
from transport import Connection, Endpoint, Listener
from transport.errors import PeerSilentError, RefusedError, WeftError

LOCALHOST = "127.0.0.1"
MIB = 1 << 20
PEERS = 16  # number of peers in an open frame
OPENS = 20  # number of open frames in a session
SOON = {"peer_timeout": {"silence": "2s"}}

numbers = itertools.count(1)


def opens(stranger: socket.socket, count: int, **words: object) -> list[int]:
    """Opens and confirms connections; the kinds of the answers, one for each open."""
    kinds = []
    for dial in range(1, count + 1):
        peer = next(numbers) * PEERS
        stranger.sendall(frames.open_frame(dial, peer=peer, peers=PEERS, **words))  # type: ignore[arg-type]
        answers = [kind for kind, _ in frames.read_frames(stranger, 1)]
        kinds += answers
        if answers != [frames.OPEN_REPLY]:
            break
        stranger.sendall(frames.confirm(dial))
    return kinds


@contextlib.contextmanager
def stranger(port: int) -> Iterator[socket.socket]:
    with greeted(port, node=next(numbers), session=next(numbers)) as one:
        yield one


def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds that ends; fails only after PATIENCE_S."""
    over = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if holds():
            return
        over.wait(0.02)
    raise AssertionError("it does not hold in time")


class Echo:
    """Accepts every connection and echoes the first message of each that sends one."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(WeftError):
            for connection in self._listener:
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(WeftError), connection:
            while True:
                connection.send(connection.recv(1 << 16))


def echoed(connection: Connection, data: bytes) -> bytes:
    connection.send(data, timeout_s=PATIENCE_S)
    return connection.recv(len(data), timeout_s=PATIENCE_S)


def test_probes__of_a_silent_stranger_are_few_and_it_is_let_go() -> None:
    """It gets at most three times its bytes, whatever the owner sends; then both ends hear why."""
    with (
        Endpoint(**LOCAL | SOON) as endpoint,
        endpoint.listen(open=True) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf,
        stranger(listener.port) as one,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        deaf.bind((LOCALHOST, 0))
        deaf.setblocking(False)
        ports = [deaf.getsockname()[1]] * 32
        frame = frames.open_frame(1, peers=PEERS, ports=ports)
        one.sendall(frame)
        assert frames.read_frames(one, 1)[0][0] == frames.OPEN_REPLY
        one.sendall(frames.confirm(1))
        accepted = listener.accept(timeout_s=PATIENCE_S)
        accepted.isend(content(1 << 20, 1))  # to a stranger that answers this would be a megabyte
        with pytest.raises(PeerSilentError):
            accepted.recv(10, timeout_s=PATIENCE_S)
        said: list[tuple[int, bytes]] = []
        while frames.VERDICT not in [kind for kind, _ in said]:
            said += frames.read_frames(one, 1)
        assert b"no data path to the peer has carried an answer" in said[-1][1]
        sizes = []
        with contextlib.suppress(BlockingIOError):
            while True:
                sizes.append(len(deaf.recv(1 << 16)))
        assert sum(sizes) <= 3 * len(frame)
        assert len(sizes) >= PEERS
        until(lambda: endpoint.counters().strangers_bytes == 0)


def test_control__a_silent_stranger_is_not_dialled_back() -> None:
    """It names a port for control sockets; its session waits there for one, and ends."""
    with (
        Endpoint(**LOCAL | SOON) as endpoint,
        endpoint.listen(open=True) as listener,
        socket.create_server((LOCALHOST, 0)) as port,
    ):
        port.setblocking(False)
        with greeted(listener.port, control=port.getsockname()[1]) as one:
            assert opens(one, 1) == [frames.OPEN_REPLY]
            accepted = listener.accept(timeout_s=PATIENCE_S)
        with pytest.raises(PeerSilentError):
            accepted.recv(1, timeout_s=PATIENCE_S)
        with pytest.raises(BlockingIOError):
            port.accept()


def test_silence__ends_no_idle_connection_that_has_answered() -> None:
    with pair(**SOON) as (here, there), there._owner.listen(open=True) as listener:
        for _ in range(2):  # twice the time after which a stranger is let go
            with stranger(listener.port) as one:
                assert opens(one, 1) == [frames.OPEN_REPLY]
                kinds: list[int] = []
                while frames.VERDICT not in kinds:
                    kinds += [kind for kind, _ in frames.read_frames(one, 1)]
        here.send(b"still here", timeout_s=PATIENCE_S)
        assert there.recv(10, timeout_s=PATIENCE_S) == b"still here"


@pytest.mark.parametrize("way", ["of one address", "behind one address"])
def test_bytes__of_strangers_are_bounded_and_16_ranks_get_in(way: str) -> None:
    """Strangers from the ranks' own address fill the bound many times, before and after."""
    with ExitStack() as held:
        endpoint = held.enter_context(Endpoint(**LOCAL | {"open_bytes": {"address": MIB}}))
        listener = held.enter_context(endpoint.listen(open=True))
        Echo(listener)
        port = listener.port
        if way == "behind one address":
            port = held.enter_context(relay(listener.port))
        most = 0

        def attack() -> None:
            nonlocal most
            for _ in range(4):
                one = held.enter_context(stranger(port))
                kinds = opens(one, OPENS)
                assert frames.OPEN_REPLY in kinds
                most = max(most, endpoint.counters().strangers_bytes)

        attack()
        ranks = []
        for rank in range(16):
            own = held.enter_context(Endpoint(**LOCAL))
            made = held.enter_context(own.connect(LOCALHOST, port, timeout_s=PATIENCE_S))
            assert echoed(made, data := bytes([rank])) == data
            ranks.append(made)
        attack()
        for rank, made in enumerate(ranks):
            assert echoed(made, data := content(5_000, rank)) == data
        assert MIB // 2 < most <= MIB


def test_bytes__of_all_addresses_are_bounded() -> None:
    """Strangers fill the bound of all; a peer of another address gets in."""
    knobs = LOCAL | {"open_bytes": {"all": MIB, "address": MIB}}
    with ExitStack() as held:
        endpoint = held.enter_context(Endpoint(**knobs))
        listener = held.enter_context(endpoint.listen(open=True))
        Echo(listener)
        for number in range(8):
            one = held.enter_context(socket.socket())
            one.bind((f"127.0.3.{number + 1}", 0))
            one.settimeout(PATIENCE_S)
            one.connect((LOCALHOST, listener.port))
            one.sendall(frames.hello(node=next(numbers), session=next(numbers)))
            assert frames.read_frames(one, 1)[0][0] == frames.HELLO_REPLY
            opens(one, OPENS)
            assert endpoint.counters().strangers_bytes <= MIB
        own = held.enter_context(Endpoint(**LOCAL))
        made = held.enter_context(own.connect(LOCALHOST, listener.port, timeout_s=PATIENCE_S))
        assert echoed(made, b"hello") == b"hello"


def test_bytes__are_refused_only_when_all_have_answered() -> None:
    """The error names the knob; open connections continue; closed ones make room."""
    with ExitStack() as held:
        endpoint = held.enter_context(Endpoint(**LOCAL | {"open_bytes": {"address": MIB}}))
        listener = held.enter_context(endpoint.listen(open=True))
        Echo(listener)
        own = held.enter_context(Endpoint(**LOCAL))
        made: list[Connection] = []

        def fill() -> None:
            for _ in range(MIB // 1024):
                made.append(own.connect(LOCALHOST, listener.port, timeout_s=PATIENCE_S))
                assert echoed(made[-1], b"hello") == b"hello"

        with pytest.raises(RefusedError, match="WEFT_OPEN_BYTES=address"):
            fill()
        assert len(made) > 100
        for each in (made[0], made[-1]):
            assert echoed(each, b"on") == b"on"
        before = endpoint.counters().strangers_bytes
        for each in made:
            each.close()
        until(lambda: endpoint.counters().strangers_bytes < before // 2)
        again = held.enter_context(own.connect(LOCALHOST, listener.port, timeout_s=PATIENCE_S))
        assert echoed(again, b"hello") == b"hello"


def test_bytes__of_an_authenticated_peer_are_not_charged(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(content(32, 1))
    (tmp_path / "secret").chmod(0o600)
    with pair(secret_file=str(tmp_path / "secret")) as (here, there):
        assert there._owner.counters().strangers_bytes == 0
        here.isend(b"hello")
        assert there.recv(5, timeout_s=PATIENCE_S) == b"hello"
        assert there._owner.counters().strangers_bytes == 0
