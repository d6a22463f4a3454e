"""Writes traces in the format of Perfetto: tracks with slices, instants, counters and arrows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import BinaryIO

from transport.trace.protobuf import MASK, data, double, fixed64, number, text, varint

Value = bool | int | float | str | None
Args = Mapping[str, Value]

WAITING_BYTES = 1 << 20  # trace packets are collected up to this size, then written
NAMES_MAX = 10_000  # event names that get a number (interned); further names are written in full
SEQUENCE = 1  # number of the only sequence of packets
# sequence_flags of a packet. CLEARED: it forgets the interned names; CONTINUED: it uses them.
CLEARED, CONTINUED = 1, 2
BOOTTIME, REALTIME = 6, 1  # ids of clocks; BOOTTIME is the default
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  # types of events
NANOSECONDS = 1  # unit of a counter

# Fields of every packet but the first: the number of its sequence, and its flags.
_ENDING = number(10, SEQUENCE) + number(13, CONTINUED)


class PerfettoWriter:
    """Writes to a file that is open for bytes. Times are in nanoseconds since 1970."""

    def __init__(self, file: BinaryIO, first_ns: int) -> None:
        self._file = file
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        # Event names and their numbers, encoded, which the next trace packet must define.
        self._new = b""
        self.events = 0
        clocks = b"".join(
            data(1, number(1, clock) + number(2, max(first_ns, 0)))
            for clock in (BOOTTIME, REALTIME)
        )
        self._put(data(6, clocks) + number(10, SEQUENCE) + number(13, CLEARED))

    def track(
        self, name: str, parent: int = 0, *, pid: int | None = None, unit: int | str | None = None
    ) -> int:
        """Describes a track and returns its number.

        pid: given if the track is a process. unit: given if the track is a counter.
        """
        self._tracks += 1
        uuid = (self._tracks * 0x9E3779B97F4A7C15 + 0x77656674) & MASK
        body = number(1, uuid) + (number(5, parent) if parent else b"")
        if pid is None:
            body += text(2, name)
        else:
            body += data(3, number(1, pid) + text(6, name))
        if unit is not None:
            body += data(8, number(3, unit) if isinstance(unit, int) else text(6, unit))
        self._put(data(60, body) + _ENDING)
        return uuid

    def slice(
        self,
        track: int,
        name: str,
        begin_ns: int,
        end_ns: int | None,
        args: Args,
        *,
        starts: Iterable[int] = (),
        ends: Iterable[int] = (),
    ) -> None:
        """Adds a slice; without an end it lasts to the end of the trace.

        starts, ends: numbers of the arrows that start and end at the slice.
        """
        body = number(9, BEGIN) + number(11, track) + self._name(name)
        body += b"".join(self._arg(key, value) for key, value in args.items() if value is not None)
        body += b"".join(fixed64(47, one) for one in starts)
        body += b"".join(fixed64(48, one) for one in ends)
        self._event(begin_ns, body)
        if end_ns is not None:
            self._event(max(begin_ns, end_ns), number(9, END) + number(11, track))
        self.events += 1

    def instant(self, track: int, name: str, at_ns: int, args: Args) -> None:
        body = number(9, INSTANT) + number(11, track) + self._name(name)
        body += b"".join(self._arg(key, value) for key, value in args.items() if value is not None)
        self._event(at_ns, body)
        self.events += 1

    def count(self, track: int, at_ns: int, value: int) -> None:
        """Sets the value of a counter from this time on."""
        self._event(at_ns, number(9, COUNTER) + number(11, track) + number(30, value))
        self.events += 1

    def flush(self) -> None:
        self._file.write(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _event(self, at_ns: int, body: bytes) -> None:
        packet = number(8, at_ns) + data(11, body) + _ENDING
        if self._new:
            packet += data(12, self._new)
            self._new = b""
        self._put(packet)

    def _put(self, packet: bytes) -> None:
        framed = b"\x0a" + varint(len(packet)) + packet
        self._waiting.append(framed)
        self._waiting_bytes += len(framed)
        if self._waiting_bytes >= WAITING_BYTES:
            self.flush()

    def _name(self, name: str) -> bytes:
        known = self._names.get(name)
        if known is None:
            if len(self._names) >= NAMES_MAX:
                return text(23, name)
            known = self._names[name] = len(self._names) + 1
            self._new += data(2, number(1, known) + text(2, name))
        return number(10, known)

    def _arg(self, key: str, value: Value) -> bytes:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = len(self._keys) + 1
            self._new += data(3, number(1, known) + text(2, key))
        if isinstance(value, bool):
            body = number(2, value)
        elif isinstance(value, int):
            body = number(4, value) if value < 1 << 63 else number(3, value)
        elif isinstance(value, float):
            body = double(5, value)
        else:
            body = text(6, str(value))
        return data(4, number(1, known) + body)
