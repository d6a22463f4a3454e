"""Calls compiled hooks from Python: from a .so file, or compiled in this process.

This is for tests, conformance and debugging; the data path loads libraries in native code.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from congestion.api import FAMILIES, MAX_PATHS, Policy
from transport import trusted
from transport.compiler import emit, source
from transport.ground.interrupts import interrupts_held

# Libraries in weft's own package are not checked: whoever can write there can change weft itself.
_INSTALLED = Path(__file__).resolve().parents[1]

_HOOK = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class Descriptor(ctypes.Structure):
    """The C struct Descriptor of native/policy/policy.h."""

    _fields_ = (
        ("descriptor_bytes", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("family", ctypes.c_uint32),
        ("hook_count", ctypes.c_uint32),
        ("flow_bytes", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("params_bytes", ctypes.c_uint32),
        ("event_bytes", ctypes.c_uint32),
        ("result_bytes", ctypes.c_uint32),
        ("reads", ctypes.c_uint32),
        ("name", ctypes.c_char * 48),
        ("source_sha256", ctypes.c_char * 72),
        ("cpu_baseline", ctypes.c_char * 24),
        ("params_default", ctypes.c_void_p),
        ("hooks", ctypes.c_void_p * emit.FIRST_HOOKS),
        ("params_fields", ctypes.c_char_p),
        # What follows is there only if descriptor_bytes is large enough.
        ("presets", ctypes.c_char_p),
        ("later_hooks", ctypes.c_void_p * (emit.HOOKS_MAX - emit.FIRST_HOOKS)),
    )


def _address(records: np.ndarray[Any, Any] | None) -> int | None:
    return None if records is None or records.nbytes == 0 else int(records.ctypes.data)


class Library:
    """Compiled hooks; they read and write numpy records."""

    def __init__(self, descriptor: Descriptor, keep: Any) -> None:
        self.descriptor = descriptor
        self._keep = keep
        self.raised = ""  # cause of the first failed hook, if a conformance bench found it
        self.failures = 0  # calls that failed or gave a non-finite answer, counted by the benches
        (family,) = [f for f in FAMILIES.values() if f.code == descriptor.family]
        self.family = family
        self.name = descriptor.name.decode()
        addresses = list(descriptor.hooks)
        if descriptor.hook_count > len(addresses):
            addresses += descriptor.later_hooks
        self._hooks = {
            hook: _HOOK(address)
            for hook, address in zip(family.hooks, addresses, strict=False)
            if address
        }

    def hook(self, name: str) -> Any:
        """The C function of a hook, for callers that keep the addresses of their records."""
        return self._hooks[name]

    @property
    def params_default(self) -> bytes:
        where, size = self.descriptor.params_default, self.descriptor.params_bytes
        return ctypes.string_at(where, size) if where else b""

    @property
    def params_fields(self) -> str:
        """One line per parameter: name, i or f, offset in bytes, count."""
        return bytes(self.descriptor.params_fields).decode()

    def call(
        self, hook: str, *, flow: Any, shared: Any, params: Any, event: Any, result: Any
    ) -> int:
        """Calls a hook; returns its status: 0, or 1 if it failed."""
        count = 0 if shared is None else len(shared)
        if count > MAX_PATHS:
            raise ValueError(f"{count} paths: give at most {MAX_PATHS}")
        return int(
            self._hooks[hook](
                _address(flow),
                _address(shared),
                count,
                _address(params),
                _address(event),
                _address(result),
            )
        )


def load(path: str | Path) -> Library:
    """Loads a library of `write_library`. UntrustedError if another user could change the file."""
    file = Path(path).resolve()
    if not file.is_relative_to(_INSTALLED):
        trusted.check_directory(file.parent, what="the folder of the policy library")
        trusted.open_file(file, what="the policy library").close()
    handle = ctypes.CDLL(str(file))
    return Library(Descriptor.in_dll(handle, emit.DESCRIPTOR), handle)


@interrupts_held()
def jit(
    policy_or_path: Policy | str | Path, cpu: str = "", hooks: emit.Lowered | None = None
) -> Library:
    """Compiles a policy into this process, without a linker or a file."""
    policy = source.load(policy_or_path)
    module, machine = emit.build(policy, cpu or emit.baseline(), jit=True, hooks=hooks)
    engine = emit._llvm().create_mcjit_compiler(module, machine)
    engine.finalize_object()
    where = engine.get_global_value_address(emit.DESCRIPTOR)
    return Library(Descriptor.from_address(where), engine)
