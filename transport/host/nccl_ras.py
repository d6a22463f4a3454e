"""Asks the RAS service of NCCL in a running job for the job's status (NCCL's user guide, "RAS").

The protocol is lines of text over TCP; the answers are "SERVER PROTOCOL N", "OK" for each setting,
and then the status until the server closes the connection.
"""

from __future__ import annotations

import os
import socket
import time
from typing import BinaryIO

PORT = 28028
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
COLLECT_S = 5  # for so long RAS waits for other processes of the job
ANSWER_S = 4 * COLLECT_S  # it may wait several times: processes ask each other in turn
GREETING_S = 1.0
TRIES = 8
LINE_MAX = 4096
STATUS_BYTES_MAX = 256 << 20
ENABLED = (
    "RAS is part of NCCL since 2.24, unless NCCL_RAS_ENABLE=0; a process of the job must run on "
    f"that host and have made a communicator; {ADDRESS_VARIABLE} may name another address"
)


class RasError(Exception):
    """A service did not give a status; the message says what to do."""


class _NoGreetingError(Exception):
    """A process that does not run has the connection."""


def usual_address() -> tuple[str, int]:
    """Where processes of this host listen: NCCL_RAS_ADDR, or localhost:28028."""
    host, _, port = os.environ.get(ADDRESS_VARIABLE, "").rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        return "localhost", PORT
    return host.removeprefix("[").removesuffix("]"), int(port)


def ask(host: str, port: int) -> str:
    """The status as JSON. RasError if there is none."""
    for _ in range(TRIES):
        try:
            return _asked(host, port)
        except _NoGreetingError:
            # All processes of a host share the port, and each connection goes to any of them.
            continue
    raise RasError(
        f"{_name(host, port)} took {TRIES} connections and answered none: the processes of the job "
        "there do not run (stopped?), or it is not RAS that listens; ask another host of the job"
    )


def _asked(host: str, port: int) -> str:
    name = _name(host, port)
    try:
        with socket.create_connection((host, port), timeout=2 * GREETING_S) as peer:
            return _talk(peer, name)
    except ConnectionRefusedError:
        raise RasError(f"nothing listens at {name}: {ENABLED}") from None
    except socket.gaierror:
        raise RasError(
            f"there is no host {host}: write HOST:PORT, and the folder of a trace before --ras"
        ) from None
    except TimeoutError:
        raise RasError(f"{name} did not answer in time: ask again, or another host") from None
    except OSError as error:
        raise RasError(f"cannot ask {name}: {error.strerror or error}") from None


def _talk(peer: socket.socket, name: str) -> str:
    with peer.makefile("rb") as answers:
        peer.settimeout(GREETING_S)
        peer.sendall(b"client protocol 2\n")
        try:
            greeting = answers.readline(LINE_MAX)
        except TimeoutError:
            raise _NoGreetingError from None
        if not greeting.upper().startswith(b"SERVER PROTOCOL"):
            raise RasError(f"{name} is no RAS service of NCCL: it answered {_shown(greeting)}")
        peer.settimeout(COLLECT_S)
        _set(peer, answers, f"timeout {COLLECT_S}", name)
        try:
            _set(peer, answers, "set format json", name)
        except RasError as error:
            raise RasError(f"{error}: NCCL gives JSON since 2.28; ncclras -v prints text") from None
        peer.sendall(b"verbose status\n")
        end_s = time.monotonic() + ANSWER_S
        parts, size = [], 0
        while True:
            peer.settimeout(max(end_s - time.monotonic(), 0.01))
            part = answers.read1(1 << 20)
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > STATUS_BYTES_MAX:
                raise RasError(f"{name} sent more than {STATUS_BYTES_MAX >> 20} MiB")
    return b"".join(parts).decode("utf-8", "replace")


def _set(peer: socket.socket, answers: BinaryIO, setting: str, name: str) -> None:
    peer.sendall(f"{setting}\n".encode())
    answer = answers.readline(LINE_MAX)
    if answer.strip().upper() != b"OK":
        raise RasError(f"{name} answered {_shown(answer)} to {setting}")


def _shown(line: bytes) -> str:
    return ascii(line[:80].decode("ascii", "replace").strip()) if line else "nothing"


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
