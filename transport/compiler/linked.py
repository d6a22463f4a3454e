"""One object with all shipped policies but `fixed`, and a table of their descriptors.

The plugin links it in: a copy of the plugin alone then has every policy.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from congestion.api import Policy
from transport.compiler import emit
from transport.compiler.errors import PolicyError

TABLE = "weft_linked_policies"  # in native/policy/loader.cc


def table_image(symbols: Sequence[str], cpu: str) -> bytes:
    """An object file of pointers to the descriptors; a null pointer is the last."""
    pointers = ", ".join([*(f"ptr @{symbol}" for symbol in symbols), "ptr null"])
    declared = "".join(f"@{symbol} = external hidden constant i8\n" for symbol in symbols)
    return emit.assembled(
        f"{declared}@{TABLE} = hidden constant [{len(symbols) + 1} x ptr] [{pointers}]\n", cpu
    )


def write_linked(policies: Sequence[tuple[Policy, emit.Lowered]], out: Path, cpu: str) -> Path:
    """The object file `out` of these policies, whose hooks have been lowered."""
    with tempfile.TemporaryDirectory() as folder:
        names, files = [], []
        for policy, hooks in policies:
            names.append(f"{emit.DESCRIPTOR}_{policy.family.name}_{policy.name.replace('-', '_')}")
            files.append(Path(folder, f"{names[-1]}.o"))
            files[-1].write_bytes(emit.object_image(policy, cpu, names[-1], hooks))
        files.append(Path(folder, "table.o"))
        files[-1].write_bytes(table_image(names, cpu))
        command = [emit.linker(policies[0][0]), "-r", "-nostdlib", "-o", str(out), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PolicyError(
                out.name, 0, f"linking failed: {done.stderr.strip()}", "see the linker's words"
            )
    return out
