"""Decodes Protocol Buffers without a schema, and timelines by the numbers of Perfetto's fields."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

Fields = dict[int, list[Any]]
TYPES = {1: "begin", 2: "end", 3: "instant", 4: "count"}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Fields:
    """The fields of a protobuf message: number -> values, which are numbers or bytes."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        else:
            assert kind == 2
            size, at = varint(data, at)
            assert at + size <= len(data)
            value, at = data[at : at + size], at + size
        found[number].append(value)
    return found


def double(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


@dataclass
class Event:
    """track: names of the tracks from the process down."""

    type: str
    track: str
    at_ns: int
    name: str
    args: dict[str, Any]
    starts: list[int]
    ends: list[int]
    value: int


@dataclass
class Timeline:
    tracks: list[str]
    events: list[Event]

    def of(self, track: str, type_: str = "begin") -> list[Event]:
        return [one for one in self.events if one.track == track and one.type == type_]


def timeline(data: bytes) -> Timeline:
    names: dict[int, str] = {}
    keys: dict[int, str] = {}
    tracks: dict[int, str] = {}
    events = []
    packets = [fields(packet) for packet in fields(data)[1]]
    assert packets[0][13] == [1]
    for packet in packets:
        assert packet[10] == [1]
        for interned in map(fields, packet[12]):
            for number, known in ((2, names), (3, keys)):
                for entry in map(fields, interned[number]):
                    known[entry[1][0]] = entry[2][0].decode()
        for track in map(fields, packet[60]):
            name = track[2][0] if track[2] else fields(track[3][0])[6][0]
            above = tracks[track[5][0]] + "/" if track[5] else ""
            assert track[1][0] not in tracks
            tracks[track[1][0]] = above + name.decode()
        events += [_event(packet[8][0], fields(body), names, keys, tracks) for body in packet[11]]
    return Timeline([*tracks.values()], events)


def _event(
    at_ns: int, body: Fields, names: dict[int, str], keys: dict[int, str], tracks: dict[int, str]
) -> Event:
    args: dict[str, Any] = {}
    for one in map(fields, body[4]):
        key = keys[one[1][0]]
        if one[6]:
            args[key] = one[6][0].decode()
        elif one[5]:
            args[key] = double(one[5][0])
        else:
            ((args[key],),) = (one[number] for number in (2, 3, 4) if one[number])
    name = names[body[10][0]] if body[10] else "".join(map(bytes.decode, body[23]))
    value = body[30][0] if body[30] else 0
    type_ = TYPES[body[9][0]]
    return Event(type_, tracks[body[11][0]], at_ns, name, args, body[47], body[48], value)
