"""Tests that Ctrl-C is neither lost in a library nor turned into another error."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S
from transport.cli import INTERRUPTED
from transport.ground.interrupts import interrupts_held, with_interrupts


@interrupts_held()
def with_signal(reached: list[str]) -> None:
    signal.raise_signal(signal.SIGINT)
    reached.append("after the signal")


def test_interrupts_held__are_handled_at_the_end() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        with_signal(reached)
    assert reached == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_held__nested_ones_wait_for_the_outer_one() -> None:
    @interrupts_held()
    def outer() -> None:
        with_signal(reached)
        reached.append("after the inner one")

    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        outer()
    assert reached == ["after the signal", "after the inner one"]


def test_with_interrupts__another_error_after_ctrl_c_is_an_interrupt() -> None:
    def swallow() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    with pytest.raises(KeyboardInterrupt):
        with_interrupts(swallow)
    with pytest.raises(ZeroDivisionError):
        with_interrupts(lambda: 1 // 0)
    assert with_interrupts(lambda: 7) == 7


# A command that fails as DuckDB does on Ctrl-C: with an error of its own.
COMMAND = """
import os, signal, sys, click
from transport.cli import invoke

@click.command()
@click.argument("kind")
def command(kind):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        error = RuntimeError if kind == "runtime" else click.ClickException
        raise error("cannot read traces: KeyboardInterrupt") from None

sys.exit(invoke([sys.argv[1]], command))
"""


@pytest.mark.parametrize("kind", ["runtime", "click"])
def test_invoke__ends_quietly_whatever_a_library_makes_of_ctrl_c(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, kind],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (INTERRUPTED, "weft: interrupted")


# A program of two interrupts: the second comes while the first one runs `finally` blocks.
PROGRAM = """
import os, signal
from transport.ground.interrupts import end_at_interrupt

end_at_interrupt()
try:
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on", flush=True)
finally:
    os.kill(os.getpid(), signal.SIGINT)
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "status", "said", "errors"),
    [
        (signal.SIG_DFL, 130, "cleaned up\n", "interrupted\n"),
        (signal.SIG_IGN, 0, "goes on\ncleaned up\n", ""),
    ],
)
def test_end_at_interrupt__the_first_ends_the_program_and_the_second_does_no_harm(
    number: signal.Handlers, status: int, said: str, errors: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        preexec_fn=lambda: signal.signal(signal.SIGINT, number),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, said, errors)
