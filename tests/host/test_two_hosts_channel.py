"""Tests the TCP channel between the two ends of a test, over loopback."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import until
from transport.errors import ConnectionClosedError, TimedOutError
from transport.host.two_hosts import channel
from transport.host.two_hosts.channel import ChannelListener, TcpChannel, message_ports
from transport.host.two_hosts.facts import TEXT_BYTES_MAX, FactError, PairStep, Verdict

HOST = "127.0.0.1"
STEP = PairStep(1, 2)


def free_port() -> int:
    """A port that was free just now, as its neighbours usually are."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return min(int(one.getsockname()[1]), 65_000)


def taken(listener: ChannelListener) -> TcpChannel:
    until(lambda: listener.waits(HOST), "the channel was not accepted")
    found = listener.take(HOST)
    assert found is not None
    return found


def test_channel__facts_arrive_in_both_directions_until_one_end_closes() -> None:
    port = free_port()
    with ChannelListener(port) as listener:
        assert listener.port in message_ports(port)
        near = channel.connect(HOST, port)
        assert near is not None
        with taken(listener) as far:
            near.say(STEP, 10)
            near.say(Verdict(), 10)
            assert far.hear(PairStep, timeout_s=60) == STEP
            assert far.hear(PairStep, Verdict, timeout_s=60) == Verdict()
            far.say(STEP, 10)
            assert near.hear(PairStep, timeout_s=60) == STEP
            near.check()
            with pytest.raises(TimedOutError, match="no message PairStep arrived"):
                near.hear(PairStep, timeout_s=60, goes_on=lambda: False)
        with near, pytest.raises(ConnectionClosedError, match="ended the test"):
            near.hear(PairStep, timeout_s=60)
        assert listener.take(HOST) is None


def test_channel__only_hosts_with_the_secret_get_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32 + "\n")
    port = free_port()
    with ChannelListener(port) as listener:
        monkeypatch.setenv("WEFT_SECRET_FILE", str(secret))
        for proof in (b"0" * 64 + b"\n", b"x" * 100, b""):
            with socket.create_connection((HOST, listener.port), timeout=60) as stranger:
                assert stranger.recv(100).startswith(b"weft-doctor ")
                stranger.sendall(proof)
                with suppress(OSError):  # the listener has reset the connection already
                    stranger.shutdown(socket.SHUT_WR)
                assert _rest(stranger) == b""  # the listener ends the connection
        assert not listener.waits(HOST)
        near = channel.connect(HOST, port)
        assert near is not None
        with near, taken(listener):
            pass


def _rest(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(100)
    except ConnectionResetError:  # bytes were left that nobody read
        return b""


def test_channel__another_program_at_the_port_is_no_channel() -> None:
    """Its answer is not the greeting, and the next port has nobody."""
    with socket.create_server((HOST, 0)) as program:
        port = int(program.getsockname()[1]) - 1
        waiting = socket.create_connection((HOST, port + 1))
        with program.accept()[0] as accepted:
            accepted.sendall(b"HTTP/1.1 400 Bad Request\n")
            with pytest.raises(FactError):
                channel._of(waiting, port + 1)


def test_channel__a_message_without_an_end_is_refused() -> None:
    near, far = socket.socketpair()
    with near, TcpChannel(far) as reader:
        near.settimeout(60)

        def send_on() -> bool:
            near.sendall(b"x" * 4_096)
            return True

        with pytest.raises(FactError, match=f"at most {TEXT_BYTES_MAX} bytes"):
            reader.hear(PairStep, timeout_s=600, goes_on=send_on)


def test_channel__waiting_channels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "WAITING_MAX", 1)
    port = free_port()
    with ChannelListener(port):
        first = channel.connect(HOST, port)
        assert first is not None
        with first:
            second = channel.connect(HOST, port)
            assert second is not None
            with second, pytest.raises(ConnectionClosedError):
                first.hear(PairStep, timeout_s=60)


def test_channel__message_ports_follow_the_control_port_or_end_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert message_ports(7117) == [7118, 7119, 7120, 7121]
    assert message_ports(65_534) == [65_535]
    monkeypatch.setenv("WEFT_CONTROL_PORT", "7000-7007")
    assert message_ports(7000) == [7007, 7006, 7005, 7004]
    monkeypatch.setenv("WEFT_CONTROL_PORT", "7000-7001")
    assert message_ports(7000) == [7001]


@pytest.mark.parametrize(
    ("address", "plain"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1")],
)
def test_channel__addresses_are_compared_without_their_form(address: str, plain: str) -> None:
    assert channel.plain_address(address) == plain
