"""Names and sizes as people type them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from transport.ground.units import binary_text, bytes_of

SIZE_MAX = 1 << 60
_POWERS = {"K": 10, "M": 20, "G": 30, "T": 40}


def matched(name: str, known: Iterable[str]) -> str:
    """The known name that differs only in case, hyphens, underscores, dots and spaces, or `name`.

    H100 is h100, Llama2-7B is llama2-7b, allreduce is all_reduce.
    """
    names = list(known)
    if name in names:
        return name
    found = [one for one in names if _plain(one) == _plain(name)]
    return found[0] if len(found) == 1 else name


def size_of(text: str, bare: str = "") -> int:
    """Bytes of a text such as "2 MB", "64 KiB" or, in powers of two as nccl-tests write it, 1G.

    bare: unit of a number without one; empty: bytes. ValueError if the text is no size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?)\s*", text)
    unit = (match[2] or bare).upper() if match else ""
    if match is None or not unit:
        found = bytes_of(text)
    else:
        found = int(Fraction(match[1]) * 2 ** _POWERS[unit])
    if found > SIZE_MAX:
        raise ValueError(f"{text!r} is more than {binary_text(SIZE_MAX)}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
