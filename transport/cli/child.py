"""Runs a command of the user as a child process, and passes signals on to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from transport.cli.others import CannotRunError

# Signals that would end this process; they are passed on to the command instead.
PASSED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
SI_KERNEL = 0x80  # si_code of what a terminal sends (sigaction(2)); Python does not name it
# kill(1) of a process group, timeout(1) and job managers signal weft and the command alike, and
# nothing tells that from a signal to weft alone. So what the first signal ends gets no second one.
GRACE_S = 0.5
# How often to look whether the command has ended, should a thread have taken its SIGCHLD.
LOOK_S = 1.0


def run(words: list[str], variables: Mapping[str, str]) -> int:
    """Runs the command to its end, and returns its exit status as a shell would.

    words[0] is the path of the program. CannotRunError if it cannot be run. Only for a process of
    one thread: another one could take a signal that this one waits for.
    """
    # Python's handlers of signals do not tell who sent one, as sigwaitinfo() does.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED, signal.SIGCHLD})
    on_end = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        try:
            child = os.posix_spawn(
                words[0],
                words,
                variables,
                setsigmask=before,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these two
            )
        except OSError as error:
            raise CannotRunError(words[0], error) from None
        status = _passing(child)
    finally:
        while signal.sigtimedwait(PASSED, 0) is not None:
            pass  # it came for the command, which has ended
        signal.signal(signal.SIGCHLD, on_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 128 - status if status < 0 else status


def _passing(child: int) -> int:
    """Passes signals on to the child until it ends; its exit status, negative: of a signal."""
    while True:
        info = signal.sigtimedwait({*PASSED, signal.SIGCHLD}, LOOK_S)
        has_ended, status = _ended(child)
        if has_ended:
            return status
        if info is None or info.si_signo == signal.SIGCHLD or _has_reached(child, info):
            continue
        has_ended, status = _ends_soon(child)
        if has_ended:
            return status
        os.kill(child, info.si_signo)


def _has_reached(child: int, info: signal.struct_siginfo) -> bool:
    """Whether the child got the signal, too: a terminal sends Ctrl-C to its foreground group."""
    return info.si_code == SI_KERNEL and os.getpgid(child) == os.getpgrp()


def _ends_soon(child: int) -> tuple[bool, int]:
    """Waits GRACE_S at most for the end of the child; then as _ended()."""
    until_s = time.monotonic() + GRACE_S
    while True:
        found = _ended(child)
        left_s = until_s - time.monotonic()
        if found[0] or left_s <= 0:
            return found
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def _ended(child: int) -> tuple[bool, int]:
    """Whether the child has ended, and its exit status."""
    pid, status = os.waitpid(child, os.WNOHANG)
    return pid != 0, os.waitstatus_to_exitcode(status) if pid else 0
