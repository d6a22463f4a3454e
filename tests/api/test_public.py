"""Tests that public names are exported and documented, and that options are keyword-only."""

import asyncio
import inspect

import pytest

import congestion
import transport
from transport import Connection, Endpoint, Listener
from transport.errors import (
    InvalidArgumentError,
    RefusedError,
    TimedOutError,
    WeftError,
    WouldBlockError,
)

from .support import LOCAL, PATIENCE_S, pair


def options(call: object) -> set[str]:
    found = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
    return {one.name for one in found if one.kind is one.KEYWORD_ONLY}


@pytest.mark.parametrize("name", [name for name in transport.__all__ if name != "__version__"])
def test_names__are_there_and_documented(name: str) -> None:
    found = getattr(transport, name)
    if inspect.isclass(found):
        assert inspect.getdoc(found)


def test_names__a_policy_imports_from_the_package() -> None:
    for name in congestion.__all__:
        assert hasattr(congestion, name)


@pytest.mark.parametrize(
    "forms",
    [
        (Connection.send, Connection.asend, Connection.recv_into, Connection.arecv_into),
        (Connection.isend, Connection.irecv_into),
        (Connection.recv, Connection.arecv),
        (Endpoint.connect, Endpoint.aconnect),
        (Listener.accept, Listener.aaccept),
    ],
)
def test_options__are_the_same_in_every_form(forms: tuple[object, ...]) -> None:
    assert len({frozenset(options(form)) for form in forms}) == 1
    assert options(forms[0])


def test_irecv__holds_the_message() -> None:
    with pair() as (here, there):
        handle = here.irecv(10)
        with pytest.raises(WouldBlockError):
            _ = handle.data
        there.send(b"hello", timeout_s=PATIENCE_S)
        assert handle.wait(PATIENCE_S) == 5
        assert handle.data == b"hello"
        sent = there.isend(b"x")
        assert here.recv(1, timeout_s=PATIENCE_S) == b"x"
        with pytest.raises(InvalidArgumentError, match="irecv"):
            _ = sent.data


def test_awaited__ends_when_its_time_is_over() -> None:
    with pair() as (here, there):
        with pytest.raises(TimedOutError):
            asyncio.run(here.arecv(10, timeout_s=0.05))
        with pytest.raises(WeftError):
            there.recv(10, timeout_s=PATIENCE_S)


def test_accept__awaited_ends_when_its_time_is_over() -> None:
    with (
        Endpoint(**LOCAL) as endpoint,
        endpoint.listen() as listener,
        pytest.raises(TimedOutError, match="no peer within"),
    ):
        asyncio.run(listener.aaccept(timeout_s=0.05))


def test_accept__an_error_has_the_reason_of_a_refusal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The refused peer has connected before: it is no stranger, and no counter has the refusal."""
    with Endpoint(**LOCAL) as here, Endpoint(**LOCAL) as there, here.listen() as listener:
        gone = here.listen()
        there.connect(gone.handle, timeout_s=PATIENCE_S)
        gone.close()
        with pytest.raises(RefusedError):
            there.connect(gone.handle, timeout_s=PATIENCE_S)
        assert here.counters().strangers_refused == 0
        with pytest.raises(TimedOutError, match="the last peer that was refused: 127"):
            listener.accept(timeout_s=0.05)
    assert "refused 127.0.0.1" in capfd.readouterr().err


def test_errors__of_arguments_are_of_this_library() -> None:
    with pair() as (here, there), Endpoint(interfaces="lo", engines=1) as foreign:
        for wrong in (
            lambda: here.recv_into(b"read-only"),
            lambda: here.recv(-1),
            lambda: here.send(b"x", timeout_s=-1),
            lambda: here.isend(bytearray(4), memory=foreign.register(bytearray(4))),
        ):
            with pytest.raises(InvalidArgumentError):
                wrong()
        handle = there.irecv(1)  # the connection still works
        here.send(b"x", timeout_s=PATIENCE_S)
        assert handle.wait(PATIENCE_S) == 1
