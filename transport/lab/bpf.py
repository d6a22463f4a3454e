"""A small eBPF assembler: methods add instructions, `assemble` returns the kernel's byte code."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from transport.lab.model import LabError


class Register(IntEnum):
    """R0: result of a call; R1 to R5: its arguments; R6 to R9: kept by calls; R10: stack frame."""

    R0 = 0
    R1 = 1
    R2 = 2
    R3 = 3
    R4 = 4
    R5 = 5
    R6 = 6
    R7 = 7
    R8 = 8
    R9 = 9
    R10 = 10


class Helper(IntEnum):
    """Kernel helper functions, by their numbers in the ABI."""

    MAP_LOOKUP = 1
    KTIME_NS = 5
    RANDOM_U32 = 7
    SKB_STORE_BYTES = 9
    SKB_LOAD_BYTES = 26
    SKB_ECN_SET_CE = 97


ARITHMETIC = {"+": 0x00, "-": 0x10, "*": 0x20, "/": 0x30, "|": 0x40, "&": 0x50, "<<": 0x60}
ARITHMETIC |= {">>": 0x70, "%": 0x90, "^": 0xA0, "=": 0xB0}
CONDITIONS = {"==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
SIZES = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}  # bytes of a memory access -> bits of the opcode

# Instruction classes and modes, from linux/bpf.h.
LOAD_IMMEDIATE_64 = 0x18
LOAD, STORE_VALUE, STORE = 0x61, 0x62, 0x63  # bits of SIZES are added to these opcodes
ATOMIC_64 = 0xDB
JUMP, ALU_64, BY_REGISTER = 0x05, 0x07, 0x08
CALL, EXIT = 0x85, 0x95
ATOMIC_ADD, ATOMIC_FETCH, ATOMIC_COMPARE = 0x00, 0x01, 0xF1
MAP_BY_DESCRIPTOR = 1

Operand = Register | int


@dataclass(frozen=True)
class Instruction:
    code: int
    target: int = 0
    source: int = 0
    offset: int = 0
    value: int = 0
    label: str = ""  # target of a jump; `assemble` computes the offset

    def packed(self, offset: int) -> bytes:
        return struct.pack("<BBhi", self.code, self.target | self.source << 4, offset, self.value)


class Assembler:
    """Builds a program; each method adds an instruction."""

    def __init__(self) -> None:
        self._code: list[Instruction] = []
        self._labels: dict[str, int] = {}

    def let(self, target: Register, operation: str, operand: Operand) -> None:
        """64-bit arithmetic: target = target operation operand; "=" assigns the operand."""
        self._with_operand(ALU_64 | ARITHMETIC[operation], target, operand)

    def jump(self, label: str) -> None:
        self._code.append(Instruction(JUMP, label=label))

    def jump_if(self, left: Register, condition: str, right: Operand, label: str) -> None:
        """Jumps to the label if the comparison of unsigned 64-bit numbers is true."""
        self._with_operand(JUMP | CONDITIONS[condition], left, right, label)

    def label(self, name: str) -> None:
        if name in self._labels:
            raise LabError(f"the eBPF label {name} is defined twice; this is a defect of weft")
        self._labels[name] = len(self._code)

    def load(self, target: Register, base: Register, offset: int, size: int = 8) -> None:
        self._code.append(Instruction(LOAD | SIZES[size], target, base, offset))

    def store(self, base: Register, offset: int, what: Operand, size: int = 8) -> None:
        if isinstance(what, Register):
            self._code.append(Instruction(STORE | SIZES[size], base, what, offset))
        else:
            self._code.append(Instruction(STORE_VALUE | SIZES[size], base, 0, offset, what))

    def atomic_add(self, base: Register, offset: int, what: Register) -> None:
        self._code.append(Instruction(ATOMIC_64, base, what, offset, ATOMIC_ADD))

    def fetch_add(self, base: Register, offset: int, what: Register) -> None:
        """Atomically adds `what` to memory; `what` receives the previous value."""
        self._code.append(Instruction(ATOMIC_64, base, what, offset, ATOMIC_ADD | ATOMIC_FETCH))

    def compare_exchange(self, base: Register, offset: int, new: Register) -> None:
        """Atomically writes `new` if memory equals R0; R0 receives the previous value."""
        self._code.append(Instruction(ATOMIC_64, base, new, offset, ATOMIC_COMPARE))

    def load_map(self, target: Register, descriptor: int) -> None:
        """Loads the address of a map, given its open descriptor."""
        self._code.append(
            Instruction(LOAD_IMMEDIATE_64, target, MAP_BY_DESCRIPTOR, value=descriptor)
        )
        self._code.append(Instruction(0))  # second slot: the upper half of the 64-bit number

    def call(self, helper: Helper) -> None:
        self._code.append(Instruction(CALL, value=helper))

    def leave(self, result: int) -> None:
        """Adds instructions that end the program with the return value `result`."""
        self.let(Register.R0, "=", result)
        self._code.append(Instruction(EXIT))

    def assemble(self) -> bytes:
        """The program as byte code."""
        return b"".join(one.packed(self._offset(i, one)) for i, one in enumerate(self._code))

    def _offset(self, index: int, one: Instruction) -> int:
        if not one.label:
            return one.offset
        if one.label not in self._labels:
            raise LabError(f"the eBPF label {one.label} is undefined; this is a defect of weft")
        return self._labels[one.label] - index - 1

    def _with_operand(self, code: int, target: Register, operand: Operand, label: str = "") -> None:
        if isinstance(operand, Register):
            one = Instruction(code | BY_REGISTER, target, operand, label=label)
        else:
            one = Instruction(code, target, value=operand, label=label)
        self._code.append(one)
