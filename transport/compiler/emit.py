"""Writes a compiled policy as a library or object that exports one descriptor and needs no Python.

llvmlite is imported when first needed.
"""

from __future__ import annotations

import functools
import platform
import re
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from congestion.api import DELIVERY_FIELDS, HOP_FIELDS, Policy, Record
from transport.compiler import linker, lint, lower, source
from transport.compiler.errors import PolicyError
from transport.compiler.objectfile import symbols
from transport.ground import created
from transport.ground.interrupts import interrupts_held

ABI_VERSION = 2  # kAbiVersion in native/policy/policy.h
DESCRIPTOR = "weft_policy_descriptor"  # kDescriptorSymbol in native/policy/policy.h
DESCRIPTOR_BYTES = 256
FIRST_HOOKS, HOOKS_MAX = 4, 6  # kFirstHooks and kMaxHooks in native/policy/policy.h
READS_DELIVERY = 1  # reads_delivery in native/policy/policy.h

# External symbols that a policy may use: libm, and the memory functions that LLVM inserts.
NEEDS = frozenset({"exp", "log", "pow", "sqrt", "cbrt", "memset", "memcpy", "memmove", "fmod"})

# The CPU and the system that each baseline is compiled for.
BASELINES = {"x86-64-v3": "x86-64-v3", "aarch64": "generic"}
TRIPLES = {"x86-64-v3": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def baseline() -> str:
    """The CPU baseline of this machine's architecture."""
    return "aarch64" if platform.machine() == "aarch64" else "x86-64-v3"


@functools.cache
def _llvm() -> Any:
    lower._numba()  # imports numba first, which loads the llvmlite version that it needs
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def _bytes_ir(data: bytes) -> str:
    return 'c"' + "".join(f"\\{byte:02x}" for byte in data) + '"'


def _hook_ir(name: str, inner: str) -> str:
    """LLVM IR of a hook that calls a numba function; every numba status except 0 becomes 1."""
    given = "ptr %flow, ptr %shared, i64 %count, ptr %params, ptr %event, ptr %result"
    return f"""
declare i32 @"{inner}"(ptr, ptr, ptr, ptr, i64, ptr, ptr, ptr)
define i32 @"{name}"({given}) {{
  %value = alloca ptr
  %raised = alloca ptr
  %status = call i32 @"{inner}"(ptr %value, ptr %raised, {given})
  %wrong = icmp ne i32 %status, 0
  %answer = zext i1 %wrong to i32
  ret i32 %answer
}}"""


def fields_text(params: Record) -> str:
    """A line for each parameter, as in a descriptor: name, kind, byte offset, array length."""
    lines = []
    for name, (kind, offset, *_) in (params.dtype.fields or {}).items():
        count = kind.shape[0] if kind.shape else 1
        lines.append(f"{name} {kind.base.kind} {offset} {count}\n")
    return "".join(lines)


def presets_text(policy: Policy) -> str:
    """A line for each preset, as in a descriptor: its name, a space, its parameters."""
    return "".join(
        f"{name} {','.join(f'{field}={_value_text(value)}' for field, value in values.items())}\n"
        for name, values in policy.presets.items()
    )


def _value_text(value: Any) -> str:
    return "/".join(repr(one) for one in (value if isinstance(value, tuple) else (value,)))


def _reads(policy: Policy, names: Iterable[str]) -> bool:
    return bool({("event", name) for name in names} & lint.reads(policy))


def event_bytes(policy: Policy) -> int:
    """The part of its event that a policy gets: without telemetry if it reads none.

    The core and the simulator gather telemetry only for policies whose events have it.
    """
    family, fields = policy.family, policy.family.event.dtype.fields
    assert fields is not None
    if family.name == "window" and not _reads(policy, HOP_FIELDS):
        return int(fields[HOP_FIELDS[0]][1])
    return family.event.size_bytes


def result_bytes(policy: Policy) -> int:
    """The part of its result that a policy fills: without on_timer it sets no timer."""
    family, fields = policy.family, policy.family.result.dtype.fields
    assert fields is not None
    if family.name == "window" and family.hooks.index("on_timer") not in policy.hook_numbers:
        return int(fields["next_timer_ns"][1])
    return family.result.size_bytes


def _descriptor_ir(policy: Policy, hooks: list[str | None], symbol: str, cpu: str) -> str:
    family = policy.family
    while hooks and hooks[-1] is None:
        hooks = hooks[:-1]
    delivery = family.name == "window" and _reads(policy, DELIVERY_FIELDS)
    head = struct.pack(
        "<10I48s72s24s",
        DESCRIPTOR_BYTES,
        ABI_VERSION,
        family.code,
        len(hooks),
        policy.flow.size_bytes,
        policy.shared.size_bytes,
        policy.params.size_bytes,
        event_bytes(policy),
        result_bytes(policy),
        READS_DELIVERY if delivery else 0,
        policy.name.encode(),
        source.sha256(policy).encode(),
        cpu.encode(),
    )
    params = policy.params.filled().tobytes() if policy.params.size_bytes else b""
    defaults, pointer = "", "ptr null"
    if params:
        defaults = (
            f"@params_default = internal constant [{len(params)} x i8] "
            f"{_bytes_ir(params)}, align 8\n"
        )
        pointer = "ptr @params_default"
    named = fields_text(policy.params).encode() + b"\0"
    defaults += f"@params_fields = internal constant [{len(named)} x i8] {_bytes_ir(named)}\n"
    sets = presets_text(policy).encode() + b"\0"
    defaults += f"@presets = internal constant [{len(sets)} x i8] {_bytes_ir(sets)}\n"
    # An object's descriptor must not be exported by the library that the object is linked into.
    reach = "" if symbol == DESCRIPTOR else "hidden "
    slots = ["ptr null" if name is None else f'ptr @"{name}"' for name in hooks]
    slots += ["ptr null"] * (HOOKS_MAX - len(hooks))
    first, later = slots[:FIRST_HOOKS], slots[FIRST_HOOKS:]
    declares = "".join(
        f'declare i32 @"{name}"(ptr, ptr, i64, ptr, ptr, ptr)\n'
        for name in sorted({name for name in hooks if name})
    )
    return (
        f"{declares}{defaults}@{symbol} = {reach}constant "
        f"{{ [{len(head)} x i8], ptr, [{len(first)} x ptr], ptr, ptr, [{len(later)} x ptr] }} "
        f"{{ [{len(head)} x i8] {_bytes_ir(head)}, {pointer}, "
        f"[{len(first)} x ptr] [{', '.join(first)}], ptr @params_fields, ptr @presets, "
        f"[{len(later)} x ptr] [{', '.join(later)}] }}, align 8\n"
    )


def _machine(cpu: str, triple: str, jit: bool = False) -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=BASELINES[cpu],
        opt=3,
        reloc="default" if jit else "pic",
        codemodel="jitdefault" if jit else "default",
        jit=jit,
    )


def _retargeted(module: Any, cpu: str) -> Any:
    """The module for another machine. Hooks use numbers and records, laid out alike on all."""
    llvm = _llvm()
    moved = llvm.parse_assembly(re.sub(r'"target-(cpu|features)"="[^"]*"', "", str(module)))
    moved.triple = TRIPLES[cpu]
    moved.data_layout = str(_machine(cpu, moved.triple).target_data)
    return moved


def _internalize(module: Any, keep: set[str]) -> None:
    for item in [*module.functions, *module.global_variables]:
        if not item.is_declaration and item.name not in keep:
            item.linkage = "internal"


Lowered = list[tuple[str, str] | None]


def lowered(policy: Policy) -> Lowered:
    """Checks the hooks and infers their types: most of the work, done once for all outputs."""
    lint.check(policy)
    return lower.lower(policy)


@interrupts_held()
def build(
    policy: Policy, cpu: str, symbol: str = DESCRIPTOR, jit: bool = False, hooks: Any = None
) -> tuple[Any, Any]:
    """The optimized module of a policy and the target machine; `hooks`: the result of `lowered`."""
    if cpu not in BASELINES:
        raise PolicyError(
            policy.module,
            0,
            f"unknown CPU baseline {cpu!r}",
            "choose one of: " + ", ".join(sorted(BASELINES)),
        )
    if jit and cpu != baseline():
        raise PolicyError(
            policy.module,
            0,
            f"this machine's CPU is not {cpu}",
            f"compile it on a machine of {cpu}",
        )
    hooks = hooks or lowered(policy)
    llvm = _llvm()
    whole: Any = None
    names: list[str | None] = []
    by_inner: dict[str, str] = {}
    for hook, one in zip(policy.family.hooks, hooks, strict=True):
        if one is None:
            names.append(None)
            continue
        text, inner = one
        if inner not in by_inner:
            part = llvm.parse_assembly(text)
            head = f'target datalayout = "{part.data_layout}"\ntarget triple = "{part.triple}"\n'
            by_inner[inner] = f"weft_{hook}"
            part.link_in(llvm.parse_assembly(head + _hook_ir(by_inner[inner], inner)))
            _internalize(part, {by_inner[inner]})
            if whole is None:
                whole = part
            else:
                whole.link_in(part)
        names.append(by_inner[inner])
    head = f'target datalayout = "{whole.data_layout}"\ntarget triple = "{whole.triple}"\n'
    whole.link_in(llvm.parse_assembly(head + _descriptor_ir(policy, names, symbol, cpu)))
    _internalize(whole, {symbol})
    if cpu != baseline():
        whole = _retargeted(whole, cpu)
    machine = _machine(cpu, whole.triple, jit)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.inlining_threshold = 2000  # high enough to inline all helpers into a hook
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(whole, passes)
    return whole, machine


def _gate(policy: Policy, image: bytes, symbol: str) -> None:
    found = symbols(image)
    foreign = sorted(found.undefined - NEEDS - {"_GLOBAL_OFFSET_TABLE_"})
    if foreign:
        raise PolicyError(
            policy.module,
            0,
            f"the compiled policy needs {', '.join(foreign)}",
            "use numbers and records only: a compiled policy has no Python",
        )
    if found.defined != {symbol}:
        raise PolicyError(
            policy.module,
            0,
            f"the compiled policy exports {', '.join(sorted(found.defined))}",
            f"only {symbol} may be exported: report this as a defect of weft",
        )


def object_image(
    policy: Policy, cpu: str, symbol: str = DESCRIPTOR, hooks: Lowered | None = None
) -> bytes:
    """The object file of a policy, after checking its symbols."""
    module, machine = build(policy, cpu, symbol, hooks=hooks)
    image: bytes = machine.emit_object(module)
    _gate(policy, image, symbol)
    return image


def assembled(text: str, cpu: str) -> bytes:
    """The object file of a module given as LLVM IR."""
    module = _llvm().parse_assembly(text)
    image: bytes = _machine(cpu, TRIPLES[cpu]).emit_object(module)
    return image


def write_object(policy: Policy, out: Path, symbol: str, cpu: str) -> Path:
    image = object_image(policy, cpu, symbol)
    out.parent.mkdir(parents=True, exist_ok=True)
    created.write_output(out, image)
    return out


def write_library(policy: Policy, out: Path, cpu: str, hooks: Lowered | None = None) -> Path:
    image = object_image(policy, cpu, hooks=hooks)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        part, linked = Path(folder, "policy.o"), Path(folder, f"{policy.name}.so")
        part.write_bytes(image)
        linker.find(cpu if cpu != baseline() else "").link(part, linked)
        # Rename into place, so that a process that has mapped the old library keeps the old file.
        created.replace(out, linked.read_bytes())
    return out
