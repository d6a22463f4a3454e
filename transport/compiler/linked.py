"""Writes one object with all shipped policies except `fixed`, and a table of their descriptors.

It is linked into the plugin, so that the plugin file alone contains every shipped policy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from congestion.api import Policy
from transport.compiler import emit, linker

TABLE = "weft_linked_policies"  # the symbol that native/policy/loader.cc reads


def table_image(symbols: Sequence[str], cpu: str) -> bytes:
    """An object file with a null-terminated array of pointers to the policies' descriptors."""
    pointers = ", ".join([*(f"ptr @{symbol}" for symbol in symbols), "ptr null"])
    declared = "".join(f"@{symbol} = external hidden constant i8\n" for symbol in symbols)
    return emit.assembled(
        f"{declared}@{TABLE} = hidden constant [{len(symbols) + 1} x ptr] [{pointers}]\n", cpu
    )


def write_linked(policies: Sequence[tuple[Policy, emit.Lowered]], out: Path, cpu: str) -> Path:
    """Writes the object file of these policies, given with their lowered hooks."""
    with tempfile.TemporaryDirectory() as folder:
        names, files = [], []
        for policy, hooks in policies:
            names.append(f"{emit.DESCRIPTOR}_{policy.family.name}_{policy.name.replace('-', '_')}")
            files.append(Path(folder, f"{names[-1]}.o"))
            files[-1].write_bytes(emit.object_image(policy, cpu, names[-1], hooks))
        files.append(Path(folder, "table.o"))
        files[-1].write_bytes(table_image(names, cpu))
        linker.find(cpu if cpu != emit.baseline() else "").merge(files, out)
    return out
