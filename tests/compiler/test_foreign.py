"""Tests that policies can be compiled for a machine of another architecture."""

import importlib.util
import struct
from pathlib import Path

import pytest

from congestion.registry import shipped
from tests.wheel import needed
from transport.compiler import emit
from transport.compiler.objectfile import symbols

FOREIGN = {"x86-64-v3": "aarch64", "aarch64": "x86-64-v3"}
MACHINES = {"x86-64-v3": 62, "aarch64": 183}  # e_machine: EM_X86_64, EM_AARCH64


def machine_of(file: Path) -> int:
    (machine,) = struct.unpack_from("<H", file.read_bytes(), 18)
    return int(machine)


@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs a linker for it: pip install ziglang"
)
@pytest.mark.parametrize("name", ["swift", "cubic"])
def test_foreign__a_library_is_of_that_machine(name: str, tmp_path: Path) -> None:
    (policy,) = [entry.policy for entry in shipped() if entry.policy.name == name]
    cpu = FOREIGN[emit.baseline()]
    out = emit.write_library(policy, tmp_path / "policy.so", cpu)
    assert machine_of(out) == MACHINES[cpu]
    assert symbols(out.read_bytes(), dynamic=True).defined == {emit.DESCRIPTOR}
    assert needed(out) <= {"libm.so.6"}
