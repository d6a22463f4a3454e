"""Text of traces, such as names, as it may be shown on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters escaped: whoever writes a trace may put any into it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
