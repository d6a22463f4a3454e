"""Text for a person: names from outside, and hints at what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def printable(text: str) -> str:
    """The text with control characters escaped: whoever writes a trace may put any into it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def nearest(word: str, known: Sequence[str]) -> str:
    """The hint "; did you mean X?" if a known name is similar, else a list of known names."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return "; there are " + ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
