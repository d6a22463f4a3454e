"""The file of verdicts in a share: what the elected collector has reported, as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from transport.diagnose.live.columns import read_file
from transport.diagnose.live.incidents import Event, Key

FILE = "verdicts.jsonl"
BYTES_MAX = 16 << 20
# The exceptions that reading a line raises if it is no verdict.
NO_VERDICT = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def append(folder: Path, events: Sequence[Event]) -> None:
    """Appends events to the file of verdicts; a full file is first renamed to *.before.

    OSError if it cannot be written, or is a pipe without a reader.
    """
    if not events:
        return
    file = folder / FILE
    if file.exists() and file.stat().st_size > BYTES_MAX:
        file.replace(file.with_name(FILE + ".before"))
    text = "".join(json.dumps(one.as_json()) + "\n" for one in events)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    flags |= os.O_NOFOLLOW
    with open(os.open(file, flags, 0o666), "a", encoding="utf-8") as out:
        out.write(text)


def reported(folder: Path, since_ns: int) -> set[Key]:
    """The faults that the file reports as found at or after since_ns (ns since 1970) and not ended.

    Lines that are no verdicts are left out.
    """
    found: set[Key] = set()
    for name in (FILE + ".before", FILE):
        data = b""
        with contextlib.suppress(OSError):
            data = read_file(folder / name, 2 * BYTES_MAX)
        for line in data.splitlines():
            with contextlib.suppress(*NO_VERDICT):
                one = json.loads(line)
                place, is_stopped = one["place"], one["more"].get("state") == "stopped"
                key = (str(one["class"]), str(place["kind"]), str(place["name"]), is_stopped)
                if one["event"] == "ended":
                    found.discard(key)
                elif one["event"] == "finding" and one["time_ns"] >= since_ns:
                    found.add(key)
    return found
