"""Tests that a dial or a data path without an answer is logged, with where it went and why."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.waiting import PATIENCE_S, auntil, until
from transport import Endpoint
from transport.endpoint.handle import place_of
from transport.errors import PeerSilentError, TimedOutError

from .support import LOCAL

SILENCE_S = 2


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


class Logged:
    """The lines on standard error that match, as they come."""

    def __init__(self, capfd: pytest.CaptureFixture[str], match: str) -> None:
        self._capfd, self._match, self.lines = capfd, match, list[str]()

    def seen(self) -> bool:
        written = self._capfd.readouterr().err.splitlines()
        self.lines += [line for line in written if re.search(self._match, line)]
        return bool(self.lines)


def test_connect__warns_once_of_a_host_that_does_not_answer(
    deaf: int, capfd: pytest.CaptureFixture[str]
) -> None:
    logged = Logged(capfd, "no answer from")

    async def dial() -> None:
        with Endpoint(**LOCAL) as endpoint:
            dialling = asyncio.ensure_future(endpoint.aconnect("127.0.0.1", deaf, timeout_s=None))
            await auntil(logged.seen, "a warning")
            assert not dialling.done()
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling

    asyncio.run(dial())
    (line,) = logged.lines
    assert line.startswith(f"weft warning: no answer from 127.0.0.1 port {deaf} for ")
    assert "dialled from lo (127.0.0.1)" in line
    assert "firewall" in line
    assert "WEFT_INTERFACES" in line


def test_connect__a_host_that_does_not_answer_is_no_line_if_only_errors_are_logged(
    deaf: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with Endpoint(**LOCAL, log_level="error") as endpoint, pytest.raises(TimedOutError):
        endpoint.connect("127.0.0.1", deaf, timeout_s=2.5)
    assert not Logged(capfd, "no answer from").seen()


def test_data__warns_if_only_the_control_port_answers(capfd: pytest.CaptureFixture[str]) -> None:
    logged = Logged(capfd, "no data arrives from")
    deaf = dict(LOCAL, fault={"loss": 1}, peer_timeout={"silence": f"{SILENCE_S}s"})
    with Endpoint(**deaf) as here, Endpoint(**deaf) as there, here.listen() as listener:
        there.connect(listener.handle, timeout_s=PATIENCE_S).isend(b"never arrives")
        connection = listener.accept(timeout_s=PATIENCE_S)
        with pytest.raises(PeerSilentError):
            connection.recv(16, timeout_s=PATIENCE_S)
        until(logged.seen, "a warning")
    assert re.search("whose process answers on the control port: does a firewall", logged.lines[0])
    assert "UDP" in logged.lines[0]


def test_place_of__is_what_the_handle_names() -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        assert place_of(listener.handle) == f"127.0.0.1 port {listener.port}"
    assert place_of(bytes(80)) == "the handle's listener"
