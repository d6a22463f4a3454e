"""Tests that a dial which gets no answer warns once, and says where it went and why it may hang."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from transport import Endpoint
from transport.endpoint import slow_dial
from transport.errors import TimedOutError

from .support import LOCAL, PATIENCE_S


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_dial, "WARN_S", 0.05)


@pytest.fixture
def deaf() -> Iterator[int]:
    """A TCP port whose host answers no SYN, as behind a firewall: its queue of peers is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [one for one in capfd.readouterr().err.splitlines() if "no answer from" in one]


def test_slow_dial__warns_once_with_the_place_and_causes(
    deaf: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with Endpoint(**LOCAL) as endpoint, pytest.raises(TimedOutError):
        endpoint.connect("127.0.0.1", deaf, timeout_s=0.5)
    (line,) = warnings(capfd)
    assert line.startswith(f"weft warning: no answer from 127.0.0.1 port {deaf} for ")
    assert "dialled from lo (127.0.0.1)" in line
    assert "firewall" in line
    assert "WEFT_INTERFACES" in line


def test_slow_dial__warns_in_coroutines_too(deaf: int, capfd: pytest.CaptureFixture[str]) -> None:
    with Endpoint(**LOCAL) as endpoint, pytest.raises(TimedOutError):
        asyncio.run(endpoint.aconnect("127.0.0.1", deaf, timeout_s=0.5))
    assert len(warnings(capfd)) == 1


def test_slow_dial__is_quiet_if_only_errors_are_logged(
    deaf: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with Endpoint(**LOCAL, log_level="error") as endpoint, pytest.raises(TimedOutError):
        endpoint.connect("127.0.0.1", deaf, timeout_s=0.5)
    assert warnings(capfd) == []


def test_slow_dial__is_quiet_if_the_peer_answers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slow_dial, "WARN_S", PATIENCE_S)
    with Endpoint(**LOCAL) as here, Endpoint(**LOCAL) as there, here.listen() as listener:
        there.connect(listener.handle, timeout_s=PATIENCE_S)
    assert warnings(capfd) == []


def test_place_of__is_what_the_handle_names() -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        assert slow_dial.place_of(listener.handle) == f"127.0.0.1 port {listener.port}"
    assert slow_dial.place_of(bytes(80)) == "the handle's listener"
