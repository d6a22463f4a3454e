"""Reads large JSON objects piece by piece: the items of one list, and all other values."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from transport.trace.layout import TraceError

CHUNK = 1 << 20  # characters that are read at once
VALUE_MAX = 64 << 20  # maximum number of characters of one value
ZIPPED = b"\x1f\x8b"
_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER = ",]}: \t\r\n"  # characters that can follow a value


class JsonError(Exception):
    """The text is not JSON. ends_early: it may be the beginning of JSON that was cut off."""

    def __init__(self, what: str, ends_early: bool = False) -> None:
        super().__init__(what)
        self.ends_early = ends_early


class _Reader:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._ended = False
        self._decode = json.JSONDecoder(parse_constant=_no_number).raw_decode

    def next(self) -> str:
        """Skips spaces and returns the next character, which is not consumed; "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> str:
        """Consumes the next character that is no space; JsonError unless it is in `wanted`."""
        found = self.next()
        if not found or found not in wanted:
            raise JsonError(f"expected one of {wanted}, found {found!r}", not found)
        self._at += 1
        return found

    def value(self) -> Any:
        """Consumes a value; reads more text until the value is complete."""
        while True:
            self.next()
            try:
                found, end = self._decode(self._text, self._at)
            except RecursionError:
                raise JsonError("the file's JSON is nested too deeply") from None
            except ValueError as error:
                # The decoder also refuses a value of which only a part was read: it is damaged only
                # if it is still invalid at the end of the file.
                near_end = self._near_end(error)
                if not self._more(double=True):
                    raise JsonError(str(error), near_end) from None
                continue
            # A number may continue in text that was not read yet: 12 may be the beginning of 123.
            ended = self._text[end : end + 1] in _AFTER if end < len(self._text) else False
            if ended or not isinstance(found, int | float) or not self._more(double=True):
                self._at = end
                return found

    def _near_end(self, error: ValueError) -> bool:
        """Whether the text may be the beginning of a value that was cut off."""
        at = getattr(error, "pos", 0)
        rest = self._text[at : at + 9].strip()
        if "Unterminated" in str(error) or not rest:
            return True
        escape = "escape" in str(error) and len(rest) < 8
        return escape or any(word.startswith(rest) for word in ("true", "false", "null", "-"))

    def _more(self, double: bool = False) -> bool:
        """Reads more text; False at the end of the file."""
        held = len(self._text) - self._at
        if held > VALUE_MAX:
            raise JsonError(f"a value is longer than {VALUE_MAX} characters, or damaged")
        chunk = "" if self._ended else self._file.read(max(CHUNK, held if double else 0))
        self._ended = not chunk
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return bool(chunk)


def _no_number(text: str) -> None:
    """The value for NaN and Infinity, which JSON does not have: None."""


def read_values(file: Path) -> Iterator[Any]:
    """Yields the JSON values that follow each other in a file, plain or compressed by gzip.

    JsonError if a value is damaged; those before it have then been yielded.
    """
    with _opened(file) as text:
        reader = _Reader(text)
        while reader.next():
            yield reader.value()


def read_object(file: Path, list_name: str) -> Iterator[tuple[str, Any]]:
    """Yields the (name, value) pairs of the object in a file, plain or compressed by gzip.

    Each item of the list with this name is a pair of its own. JsonError if the text is no object
    or damaged, or the list is no list; the pairs before that place have then been yielded.
    """
    with _opened(file) as text:
        yield from _pairs(_Reader(text), list_name)


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """The text of a file; its errors become TraceError, or JsonError if it is damaged."""
    try:
        with file.open("rb") as raw:
            zipped = raw.read(2) == ZIPPED
        opened = gzip.open if zipped else open
        with cast(TextIO, opened(file, "rt", encoding="utf-8", errors="replace")) as text:
            yield text
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise JsonError("the file cannot be decompressed", True) from None
    except OSError as error:
        raise TraceError(f"cannot read {file}: {error.strerror}") from None


def _pairs(reader: _Reader, list_name: str) -> Iterator[tuple[str, Any]]:
    reader.take("{")
    if reader.next() == "}":
        return
    while True:
        name = reader.value()
        if not isinstance(name, str):
            raise JsonError("a name in the file's JSON is not a string")
        reader.take(":")
        if name == list_name:
            if reader.next() not in ("[", ""):
                raise JsonError(f"the file's {list_name} is not a list")
            for item in _items(reader):
                yield name, item
        else:
            yield name, reader.value()
        if reader.take(",}") == "}":
            return


def _items(reader: _Reader) -> Iterator[Any]:
    reader.take("[")
    if reader.next() == "]":
        reader.take("]")
        return
    while True:
        yield reader.value()
        if reader.take(",]") == "]":
            return
