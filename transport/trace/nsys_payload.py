"""Decodes the payloads of NCCL's NVTX ranges in SQLite exports of Nsight Systems.

The fields and their offsets are in the export (NVTX_PAYLOAD_SCHEMA_ENTRIES); NCCL names them in
src/include/nvtx_payload_schemas.h. NVIDIA does not document the 32 bytes before the payload. As
other public tools read them (nsys-ai), they have the schema's id at 8 and the payload's size at 16,
as 64-bit numbers; a payload whose size, schema and length do not agree is not used.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any

HEADER_BYTES = 32
SCHEMAS_MAX = 10_000
COMM, SIZE, RANK, RANKS = "NCCL communicator ID", "Message size [bytes]", "Rank", "No. of ranks"
ROOT, PEER = "Root", "Peer rank"
WIDTHS = {COMM: 8, SIZE: 8, RANK: 4, RANKS: 4, ROOT: 4, PEER: 4}


@dataclass(slots=True)
class Payloads:
    """The schemas of an export. fields: (domain, schema) -> name of a field -> its offset.

    sizes: (domain, schema) -> bytes of a payload.
    """

    fields: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def read(self, database: sqlite3.Connection, tables: dict[str, set[str]]) -> None:
        """Reads the schemas, if the export has them. tables: table -> its columns."""
        schemas, entries = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"
        if not tables.get(schemas, set()) >= {"domainId", "schemaId", "payloadSize"}:
            return
        if not tables.get(entries, set()) >= {"domainId", "schemaId", "name", "offset"}:
            return
        sql = f"SELECT domainId, schemaId, payloadSize FROM {schemas} LIMIT {SCHEMAS_MAX}"
        for *key, size in database.execute(sql):
            if all(isinstance(one, int) for one in (*key, size)):
                self.sizes[key[0], key[1]] = size
        sql = f"SELECT domainId, schemaId, name, offset FROM {entries} LIMIT {SCHEMAS_MAX}"
        for *key, name, offset in database.execute(sql):
            if name in WIDTHS and all(isinstance(one, int) for one in (*key, offset)):
                self.fields.setdefault((key[0], key[1]), {})[name] = offset

    def of_blob(self, domain: Any, blob: Any) -> dict[str, int]:
        """The fields of a payload; {}: it cannot be decoded with certainty."""
        if not isinstance(blob, bytes) or len(blob) < HEADER_BYTES or not isinstance(domain, int):
            return {}
        schema, size = (int.from_bytes(blob[at : at + 8], "little") for at in (8, 16))
        key = (domain, schema)
        if self.sizes.get(key) != size or len(blob) != HEADER_BYTES + size:
            return {}
        payload = blob[HEADER_BYTES:]
        found = {}
        for name, offset in self.fields.get(key, {}).items():
            data = payload[offset : offset + WIDTHS[name]] if offset >= 0 else b""
            if len(data) == WIDTHS[name]:
                found[name] = int.from_bytes(data, "little", signed=WIDTHS[name] == 4)
        return found


def of_json(text: Any) -> dict[str, int]:
    """The fields of a payload that the export has as JSON; {}: there are none."""
    if not isinstance(text, str) or len(text) > 1 << 16:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: found[name] for name in WIDTHS if type(found.get(name)) is int}
