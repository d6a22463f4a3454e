"""Messages of Chakra's schema (et_def.proto, 1.0.0), with the fields that weft writes."""

from __future__ import annotations

from typing import Any

STRING, UINT64, INT64, INT32, BOOL, ENUM, MESSAGE = 9, 4, 3, 5, 8, 14, 11  # descriptor.proto
# Message -> name of a field, its number, its type, whether it is repeated.
MESSAGES: dict[str, tuple[tuple[str, int, int, bool], ...]] = {
    "AttributeProto": (
        ("name", 1, STRING, False),
        ("doc_string", 2, STRING, False),
        ("int32_val", 7, INT32, False),
        ("int64_val", 9, INT64, False),
        ("bool_val", 27, BOOL, False),
        ("string_val", 29, STRING, False),
    ),
    "GlobalMetadata": (("version", 1, STRING, False), ("attr", 2, MESSAGE, True)),
    "Node": (
        ("id", 1, UINT64, False),
        ("name", 2, STRING, False),
        ("type", 3, ENUM, False),
        ("ctrl_deps", 4, UINT64, True),
        ("data_deps", 5, UINT64, True),
        ("start_time_micros", 6, UINT64, False),
        ("duration_micros", 7, UINT64, False),
        ("attr", 10, MESSAGE, True),
    ),
}
NODE_TYPES = (
    *("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE"),
    *("COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"),
)


def classes() -> dict[str, Any]:
    """Message -> its class, made by the protobuf package."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="weft_tests_et_def.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        kinds.value.add(name=name, number=number)
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")
        for name, number, type_, repeated in fields:
            field = made.field.add(name=name, number=number, type=type_, label=3 if repeated else 1)
            if name.endswith("_val"):
                field.oneof_index = 0
            if type_ == MESSAGE:
                field.type_name = ".ChakraProtoMsg.AttributeProto"
            elif type_ == ENUM:
                field.type_name = ".ChakraProtoMsg.NodeType"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessages([file], pool=pool)
    return {name: found[f"ChakraProtoMsg.{name}"] for name in MESSAGES}
