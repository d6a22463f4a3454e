"""Tests that a handle is the invitation: who has none gets in only where a listener is open."""

import os
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.api import frames
from tests.api.support import LOCAL, PATIENCE_S, ROOT, child, content, line, relay, running
from transport import Endpoint, Listener
from transport.endpoint.endpoint import OLD_HANDLE_BYTES
from transport.errors import AuthenticationError, RefusedError, TimedOutError, WeftError

LOCALHOST = "127.0.0.1"
KEY = slice(48, 64)


def sealed(handle: bytes, **changes: bytes) -> bytes:
    """A handle with other bytes at the given places (`at32=...`), and the checksum for them."""
    body = bytearray(handle[:64])
    for place, value in changes.items():
        at = int(place.removeprefix("at"))
        body[at : at + len(value)] = value
    return bytes(body) + struct.pack("<I", frames.crc32c(bytes(body))) + handle[68:]


def old(handle: bytes) -> bytes:
    """The handle as weft 0.1 wrote it: 64 bytes without a key."""
    body = handle[:4] + struct.pack("<HH", 1, 52) + handle[8:48]
    return (body + struct.pack("<I", frames.crc32c(body))).ljust(OLD_HANDLE_BYTES, b"\0")


def assert_reached(endpoint: Endpoint, listener: Listener, handle: bytes | None = None) -> None:
    with (
        endpoint.connect(handle or listener.handle, timeout_s=PATIENCE_S) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        here.isend(b"hello")
        assert there.recv(5, timeout_s=PATIENCE_S) == b"hello"


def assert_nobody(listener: Listener) -> None:
    with pytest.raises(TimedOutError):
        listener.accept(timeout_s=0)


def test_listen__is_closed_to_peers_without_the_handle() -> None:
    with Endpoint(**LOCAL) as there, there.listen() as listener, Endpoint(**LOCAL) as here:
        with pytest.raises(AuthenticationError, match=r"handle.*open=True"):
            here.connect(LOCALHOST, listener.port, timeout_s=PATIENCE_S)
        with socket.create_connection((LOCALHOST, listener.port), timeout=PATIENCE_S) as stranger:
            stranger.sendall(frames.hello() + frames.open_frame(1))
            kinds = [kind for kind, _ in frames.read_frames(stranger, 5)]
            assert kinds == [frames.REFUSE]
        assert_nobody(listener)
        assert there.counters().strangers_refused >= 2
        assert_reached(here, listener)


def test_listen__openly_takes_host_and_port_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with Endpoint(**LOCAL, log_level="info") as there, there.listen(open=True) as listener:
        assert_reached(there, listener)
        with there.connect(LOCALHOST, listener.port, timeout_s=PATIENCE_S) as connection:
            connection.check()
        listener.accept(timeout_s=PATIENCE_S).close()
    assert f"listening without a handle's key or a secret on 0.0.0.0 port {listener.port}:" in (
        capfd.readouterr().err
    )


def test_open__a_peer_without_the_handle_reaches_open_listeners_only() -> None:
    """The id of a closed listener alone is no invitation."""
    with (
        Endpoint(**LOCAL) as there,
        there.listen(open=True) as open_one,
        there.listen() as closed_one,
        socket.create_connection((LOCALHOST, open_one.port), timeout=PATIENCE_S) as stranger,
    ):
        identity = struct.unpack_from("<Q", closed_one.handle, 16)[0]
        stranger.sendall(frames.hello())
        assert frames.read_frames(stranger, 1)[0][0] == frames.HELLO_REPLY
        stranger.sendall(frames.open_frame(1, listener=identity))
        assert frames.read_frames(stranger, 1)[0][0] == frames.REFUSE
        stranger.sendall(frames.open_frame(2))
        assert frames.read_frames(stranger, 1)[0][0] == frames.OPEN_REPLY
        assert_nobody(closed_one)
        assert_reached(there, closed_one)
        open_one.close()
        # Without an open listener, the next stranger is turned away at its hello.
        with socket.create_connection((LOCALHOST, closed_one.port), timeout=PATIENCE_S) as other:
            other.sendall(frames.hello(node=9, session=9))
            assert frames.read_frames(other, 1)[0][0] == frames.REFUSE


def test_handle__with_another_key_is_refused() -> None:
    with Endpoint(**LOCAL) as there, there.listen() as listener, Endpoint(**LOCAL) as here:
        for key in (content(16, 1), bytes(15) + b"\1"):
            with pytest.raises(AuthenticationError, match="key"):
                here.connect(sealed(listener.handle, at48=key), timeout_s=PATIENCE_S)
        with pytest.raises(AuthenticationError, match="handle"):  # without any key
            here.connect(sealed(listener.handle, at48=bytes(16)), timeout_s=PATIENCE_S)
        assert_nobody(listener)
        assert_reached(here, listener)


def test_handle__of_a_process_that_is_gone_is_refused() -> None:
    """Another process listens at its address now."""
    with Endpoint(**LOCAL) as there, there.listen() as listener, Endpoint(**LOCAL) as here:
        stale = sealed(listener.handle, at8=struct.pack("<Q", 4711))
        with pytest.raises(RefusedError, match="gone"):
            here.connect(stale, timeout_s=PATIENCE_S)
        other = sealed(listener.handle, at16=struct.pack("<Q", 4711))
        with pytest.raises(RefusedError, match="no listener"):
            here.connect(other, timeout_s=PATIENCE_S)


def test_handle__of_the_first_version_reaches_open_listeners() -> None:
    with Endpoint(**LOCAL) as there, Endpoint(**LOCAL) as here:
        with there.listen(open=True) as listener:
            assert_reached(here, listener, old(listener.handle))
        with there.listen() as listener:
            with pytest.raises(RefusedError, match="no open listener"):  # in the same session
                here.connect(old(listener.handle), timeout_s=PATIENCE_S)
            with Endpoint(**LOCAL) as other, pytest.raises(AuthenticationError, match="handle"):
                other.connect(old(listener.handle), timeout_s=PATIENCE_S)


def test_key__never_appears_on_the_wire() -> None:
    """And a relay or NAT between the two ends does no harm without a secret."""
    seen = bytearray()
    with (
        Endpoint(**LOCAL) as there,
        there.listen() as listener,
        Endpoint(**LOCAL) as here,
        relay(listener.port, seen) as port,
    ):
        assert_reached(here, listener, sealed(listener.handle, at30=struct.pack("<H", port)))
        assert len(seen) > 1000
        assert listener.handle[KEY] not in seen
        assert listener.handle[16:24] not in seen  # the listener's id is inside TLS


@pytest.mark.parametrize("whose", ["dialler", "listener", "both"])
def test_secret__is_asked_for_beside_the_handle(tmp_path: Path, whose: str) -> None:
    files = {}
    for name in ("one", "other"):
        (tmp_path / name).write_text(f"a secret, and long enough: {name}")
        (tmp_path / name).chmod(0o600)
        files[name] = {"secret_file": str(tmp_path / name)}
    here_knobs = LOCAL | (files["one"] if whose != "listener" else {})
    there_knobs = LOCAL | (files["other"] if whose != "dialler" else {})
    with Endpoint(**there_knobs) as there, there.listen() as listener:
        with Endpoint(**here_knobs) as here, pytest.raises(AuthenticationError, match="SECRET"):
            here.connect(listener.handle, timeout_s=PATIENCE_S)
        with Endpoint(**there_knobs) as same:
            assert_reached(same, listener)


def test_handle__is_an_invitation_to_its_process_alone() -> None:
    """A process with a handle of one process cannot reach another one with it."""
    with running(child("echoes")) as one, running(child("echoes")) as other:
        first, second = (bytes.fromhex(line(peer)) for peer in (one, other))
        mixed = sealed(second, at48=first[KEY])
        with Endpoint(**LOCAL) as here:
            with pytest.raises(AuthenticationError):
                here.connect(mixed, timeout_s=PATIENCE_S)
            for handle in (first, second):
                with here.connect(handle, timeout_s=PATIENCE_S) as connection:
                    connection.send(b"x", timeout_s=PATIENCE_S)
                    assert connection.recv(1, timeout_s=PATIENCE_S) == b"x"


WITHOUT_OPENSSL = """
import sys
from transport import Endpoint
from transport.errors import WeftError
with Endpoint(interfaces="lo", engines=1) as there, Endpoint(interfaces="lo", engines=1) as here:
    try:
        there.listen()
    except WeftError as error:
        print(error)
    with there.listen(open=True) as listener:
        here.connect(listener.handle, timeout_s=240).close()
        print("open")
    try:
        here.connect(bytes.fromhex(sys.argv[1]), timeout_s=240)
    except WeftError as error:
        print(error)
"""


@pytest.mark.namespaces
def test_handle__needs_openssl(tmp_path: Path) -> None:
    """Without OpenSSL, handles cannot be proved: an error reports it, and open listeners work."""
    if os.geteuid() != 0:
        pytest.skip("hiding OpenSSL needs a mount namespace, which needs root")
    found = [path for path in Path("/usr/lib").rglob("libssl.so*") if path.is_file()]
    hide = "".join(f"mount --bind /dev/null {path} && " for path in found)
    hidden = ["unshare", "-m", "sh", "-c", f'{hide}exec "$@"', "sh"]
    with running(child("echoes")) as peer:
        done = subprocess.run(
            [*hidden, sys.executable, "-c", WITHOUT_OPENSSL, line(peer)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    cannot_listen, is_open, cannot_dial = done.stdout.splitlines()
    assert "OpenSSL" in cannot_listen
    assert "open=True" in cannot_listen
    assert is_open == "open"
    assert "OpenSSL" in cannot_dial


LEAVES = """
import ctypes, sys
from transport import Endpoint
endpoint = Endpoint(interfaces="lo", engines=1)
listener = endpoint.listen()
print(listener.handle.hex(), flush=True)
sys.stdin.readline()
ctypes.CDLL(None).exit(0)  # as a C program ends: Python does not close the endpoint
"""


def test_exit__of_a_c_program_waits_for_the_use_of_openssl() -> None:
    """OpenSSL's exit handler frees what handshakes in progress use."""
    for _ in range(6):
        victim = subprocess.Popen(
            [sys.executable, "-c", LEAVES],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with running(victim):
            handle = bytes.fromhex(line(victim))
            ended = threading.Event()

            def dials(handle: bytes = handle, ended: threading.Event = ended) -> None:
                while not ended.is_set():
                    with Endpoint(**LOCAL, log_level="error") as here, suppress(WeftError):
                        here.connect(handle, timeout_s=1).close()

            threads = [threading.Thread(target=dials) for _ in range(3)]
            for thread in threads:
                thread.start()
            assert victim.stdin is not None
            victim.stdin.write("\n")
            victim.stdin.flush()
            status = victim.wait(PATIENCE_S)
            ended.set()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert status == 0


def test_handle__that_is_damaged_is_refused_before_anything_is_sent() -> None:
    with Endpoint(**LOCAL) as there, there.listen() as listener:
        for at in range(68):
            broken = bytearray(listener.handle)
            broken[at] ^= 1
            with pytest.raises(WeftError, match="handle"):
                there.connect(bytes(broken), timeout_s=PATIENCE_S)
