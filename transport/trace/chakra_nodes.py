"""Reads the nodes of Chakra's execution traces from Protocol Buffers or JSON.

The forms are those of github.com/mlcommons/chakra: schema/protobuf/et_def.proto, each message after
its size; the JSON that its jsonizer makes of that, one object after the other; and the object with
a workload_graph that its feeder reads (src/feeder/json_node.cpp).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from transport.trace.json_stream import ZIPPED, JsonError, read_object, read_values
from transport.trace.layout import TraceError
from transport.trace.protobuf import WireError, fields, read_varint, signed

MESSAGE_MAX = 64 << 20  # bytes of a node; those of PyTorch have a few KiB
GRAPH = "workload_graph"
HEAD = 4096  # characters in which a file's form is recognized
TYPES = {
    "MEM_LOAD_NODE": 2,
    "MEM_STORE_NODE": 3,
    "COMP_NODE": 4,
    "COMM_SEND_NODE": 5,
    "COMM_RECV_NODE": 6,
    "COMM_COLL_NODE": 7,
}
# Fields of AttributeProto with whole numbers: int32, int64, uint32, uint64, bool.
WHOLE = (7, 9, 11, 13, 27)
ZIGZAG = (15, 17)  # sint32, sint64
TEXT = 29
Value = int | str
DEPENDENCIES = {4, 5}  # fields of Node: ctrl_deps, data_deps


@dataclass(slots=True)
class Node:
    """A node. kind: NodeType. start_us, took_us: None if not told. attributes: by name.

    id: None if not told. needs: the nodes that it depends on, by their ids.
    """

    name: str = ""
    kind: int = 0
    start_us: int | None = None
    took_us: int | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    id: int | None = None
    needs: list[int] = field(default_factory=list)


def nodes_of(file: Path) -> Iterator[Node]:
    """The nodes of a file, which may be compressed. TraceError if it is no execution trace."""
    try:
        with _opened(file) as raw:
            head = raw.read(HEAD)
        if not _is_json(head):
            yield from _of_messages(file)
        elif b'"schema"' in head and b'"pid"' in head:
            raise TraceError(
                f"{file} is an execution trace of PyTorch: make one of Chakra with "
                "chakra_trace_link and chakra_converter, or import the trace of PyTorch's profiler "
                "(kineto)"
            )
        elif f'"{GRAPH}"'.encode() in head:
            yield from _of_graph(file)
        else:
            yield from _of_objects(file)
    except (WireError, JsonError) as error:
        raise TraceError(f"{file} is no execution trace of Chakra, or damaged: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{file} is damaged: it cannot be decompressed") from None
    except OSError as error:
        raise TraceError(f"cannot read {file}: {error.strerror}") from None


def _is_json(head: bytes) -> bool:
    """Whether a file begins as JSON. A first message of 123 bytes begins with a brace, too."""
    text = head.lstrip()
    return text[:1] == b"{" and text[1:].lstrip()[:1] in (b'"', b"}")


def _opened(file: Path) -> BinaryIO:
    with file.open("rb") as raw:
        zipped = raw.read(2) == ZIPPED
    return cast(BinaryIO, gzip.open(file) if zipped else file.open("rb"))


def _of_messages(file: Path) -> Iterator[Node]:
    with _opened(file) as raw:
        first = True
        while (size := _size(raw)) is not None:
            body = raw.read(size)
            if len(body) < size:
                raise WireError("the last node is not complete")
            if first:
                _check_metadata(body)
                first = False
            else:
                yield _node(body)
        if first:
            raise WireError("it is empty")


def _size(raw: BinaryIO) -> int | None:
    """The size of the next message; None at the end of the file."""
    data = b""
    while byte := raw.read(1):
        data += byte
        if byte[0] < 128:
            size, _ = read_varint(data, 0)
            if size > MESSAGE_MAX:
                raise WireError(f"a node of {size} bytes is too large")
            return size
        if len(data) > 10:
            raise WireError("the size of a node does not end")
    if data:
        raise WireError("the size of the last node is not complete")
    return None


def _check_metadata(body: bytes) -> None:
    """GlobalMetadata has a version and attributes. Raises WireError for another message."""
    for number, value in fields(body):
        if number not in (1, 2) or not isinstance(value, bytes):
            raise WireError("its first message is no GlobalMetadata")


def _node(body: bytes) -> Node:
    node = Node()
    for number, value in fields(body):
        if number == 2 and isinstance(value, bytes):
            node.name = value[:1000].decode("utf-8", "replace")
        elif number == 10 and isinstance(value, bytes):
            _add_attribute(node, value)
        elif number in DEPENDENCIES:
            node.needs += [value] if isinstance(value, int) else _packed(value)
        elif isinstance(value, int):
            if number == 1:
                node.id = value
            elif number == 3:
                node.kind = value
            elif number == 6:
                node.start_us = value
            elif number == 7:
                node.took_us = value
    return node


def _packed(body: bytes) -> list[int]:
    """The numbers of a repeated field in one value."""
    found, at = [], 0
    while at < len(body):
        one, at = read_varint(body, at)
        found.append(one)
    return found


def _add_attribute(node: Node, body: bytes) -> None:
    name = ""
    found: Value | None = None
    for number, value in fields(body):
        if isinstance(value, bytes):
            if number == 1:
                name = value[:100].decode("utf-8", "replace")
            elif number == TEXT:
                found = value[:1000].decode("utf-8", "replace")
        elif number in WHOLE:
            found = signed(value)
        elif number in ZIGZAG:
            found = value >> 1 ^ -(value & 1)
    if found is not None:
        node.attributes[name] = found


def _of_graph(file: Path) -> Iterator[Node]:
    for name, value in read_object(file, GRAPH):
        if name == GRAPH and isinstance(value, dict):
            node = Node(str(value.get("Name", ""))[:1000], _whole(value.get("NodeType")) or 0)
            node.took_us = _whole(value.get("runtime"))
            node.id = _whole(value.get("Id"))
            node.needs = _numbers(value, ("ctrl_deps", "data_deps"))
            for key, one in value.items():
                known = _value(one)
                if known is not None:
                    node.attributes[key] = known
            yield node


def _of_objects(file: Path) -> Iterator[Node]:
    """The objects of the jsonizer, in the form that Protocol Buffers give JSON."""
    first = True
    for value in read_values(file):
        if not isinstance(value, dict) or (first and "version" not in value):
            raise JsonError("its first object is no GlobalMetadata, or another is no object")
        if first:
            first = False
            continue
        kind = value.get("type")
        known = TYPES.get(kind, 0) if isinstance(kind, str) else _whole(kind) or 0
        node = Node(str(value.get("name", ""))[:1000], known)
        node.start_us = _whole(value.get("startTimeMicros"))
        node.took_us = _whole(value.get("durationMicros"))
        node.id = _whole(value.get("id"))
        node.needs = _numbers(value, ("ctrlDeps", "dataDeps"))
        attributes = value.get("attr")
        for one in attributes if isinstance(attributes, list) else ():
            if isinstance(one, dict):
                found = next((_value(one[key]) for key in one if key.endswith("Val")), None)
                if found is not None:
                    node.attributes[str(one.get("name"))[:100]] = found
        yield node


def _numbers(value: dict[str, Any], keys: tuple[str, str]) -> list[int]:
    """The whole numbers of lists."""
    lists = [one for key in keys if isinstance(one := value.get(key), list)]
    return [found for one in lists for each in one if (found := _whole(each)) is not None]


def _whole(value: Any) -> int | None:
    """A whole number, also as the text that 64-bit numbers have in JSON."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        return int(value)
    return value if type(value) is int and abs(value) < 1 << 64 else None


def _value(value: Any) -> Value | None:
    if isinstance(value, bool):
        return int(value)
    whole = _whole(value)
    return value[:1000] if whole is None and isinstance(value, str) else whole
