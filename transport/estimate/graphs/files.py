"""Tells which kind of graph a file has, and reads it."""

from __future__ import annotations

import re
from pathlib import Path

from transport.estimate.graphs import chakra, fx
from transport.estimate.graphs.fx_text import parse
from transport.estimate.graphs.members import Members
from transport.estimate.hlo.text import HloError, Module

FILE_BYTES_MAX = 128 << 20
HEAD = 4_096  # bytes that tell text from Protocol Buffers
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def read(file: Path, members: Members, number: int | None = None) -> tuple[Module, list[str]]:
    """The program of a graph, and notes on it. number: of several graphs in a text, from 1 on.

    HloError says what is wrong. Text of FX, or an execution trace of Chakra: Protocol Buffers or
    JSON, which may be compressed.
    """
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD)
            if _BINARY.search(head) or head.lstrip()[:1] == b"{":
                return chakra.module_of(file, members)
            data = head + opened.read(FILE_BYTES_MAX + 1 - len(head))
    except OSError as error:
        raise HloError(f"cannot read {file}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise HloError(
            f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB, the largest that is read"
        )
    if head.lstrip().startswith(b"HloModule"):
        raise HloError(f"{file} is HLO text: weft estimate hlo {file.name}")
    try:
        return fx.module_of(parse(data.decode(), number), members, file.stem)
    except UnicodeDecodeError:
        raise HloError(f"{file} is no text, and no execution trace of Chakra") from None
    except HloError as error:
        raise HloError(f"{file}: {error}") from None
