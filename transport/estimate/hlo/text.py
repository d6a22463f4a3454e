"""Reads programs in HLO text, as `compile().as_text()` of JAX and --xla_dump_to of XLA write them.

The grammar is that of XLA's parser (xla/hlo/parser/hlo_parser.cc): a header, computations, and
instructions `%name = shape opcode(operands), attribute=value, ...`. Attributes that estimates do
not need are skipped, whatever they hold. The time is linear in the size of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from transport.estimate.hlo.shapes import Shape, ShapeTextError, parse_shape
from transport.ground.regular import read_text
from transport.ground.units import counted

FILE_BYTES_MAX = 128 << 20
NESTING_MAX = 64  # of computations that call each other
LITERAL_MAX = 64  # characters of a constant that are kept
ERROR_MAX = 600  # characters of an error, as names may be of any length
TEXT_SHOWN_MAX = 40  # characters of the text in an error
# Attributes that are kept.
KEPT = {
    *("replica_groups", "device_ids", "source_target_pairs", "channel_id", "dimensions"),
    *("use_global_device_ids", "is_host_transfer", "split_dimension", "index", "direction"),
    *("to_apply", "calls", "condition", "body", "branch_computations", "true_computation"),
    *("false_computation", "called_computations", "backend_config", "custom_call_target"),
    *("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims"),
    *("dim_labels", "num_partitions", "replica_count", "is_scheduled"),
    *("async_group_id", "frontend_attributes"),
}
# Attributes that are kept of these instructions only, as others have them for other purposes.
ONLY_OF = {"frontend_attributes": {"send", "recv"}}
CONFIG_MAX = 1 << 16  # characters of backend_config that are kept
# The least number of operands of instructions that need some.
OPERANDS_MIN = {
    **dict.fromkeys(
        [
            *("while", "get-tuple-element", "copy", "copy-start", "copy-done", "convert", "slice"),
            *("broadcast", "reshape", "transpose", "bitcast", "reverse", "sort", "concatenate"),
            *("all-reduce", "all-reduce-start", "all-reduce-done", "all-gather", "all-to-all"),
            *("all-gather-start", "all-gather-done", "reduce-scatter", "collective-permute"),
            *("collective-permute-start", "collective-permute-done", "collective-broadcast"),
            *("ragged-all-to-all", "async-update", "async-done", "send", "send-done", "recv-done"),
            *("dynamic-slice", "abs", "negate", "not", "exponential", "log", "tanh", "sqrt"),
            *("rsqrt", "sign", "floor", "ceil", "cosine", "sine", "logistic", "bitcast-convert"),
        ],
        1,
    ),
    **dict.fromkeys(
        [
            *("dot", "ragged-dot", "convolution", "add", "subtract", "multiply", "divide"),
            *("maximum", "minimum", "and", "or", "xor", "compare", "power", "remainder"),
            *("conditional", "reduce", "reduce-window", "pad", "gather", "dynamic-update-slice"),
        ],
        2,
    ),
    **dict.fromkeys(["select", "clamp", "scatter", "select-and-scatter"], 3),
}
# Attributes that name computations.
CALLS = (
    *("to_apply", "calls", "condition", "body", "branch_computations", "true_computation"),
    *("false_computation", "called_computations"),
)
NO_OPERANDS = {"constant", "parameter", "iota", "partition-id", "replica-id", "rng-get-state"}

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_COMMENT = re.compile(rf'{_STRING}|/\*[^*]*(?:\*(?!/)[^*]*)*\*/|//[^\n]*|"|/\*', re.S)
_BRACKET = re.compile(rf"{_STRING}|[()\[\]{{}}]", re.S)
_STOP = re.compile(rf"{_STRING}|[()\[\]{{}},\n]", re.S)
_SPACE = re.compile(r"\s*")
_NAME = r"%?([\w.$:\-]+)"
_MODULE = re.compile(r"HloModule\s+([\w.$:\-]+)")
_TABLE = re.compile(
    r"(?:FileNames|FunctionNames|FileLocations|StackFrames)[ \t]*\n(?:[ \t]*[0-9]+ [^\n]*(?:\n|$))*"
)
_HEAD = re.compile(rf"(ENTRY\s+)?{_NAME}\s*")
_ARROW = re.compile(r"\s*->\s*")
_BEGIN = re.compile(r"\s*\{")
_THREAD = re.compile(rf"[ \t]*,\s*execution_thread={_STRING}")
_LEFT = re.compile(rf"(ROOT\s+)?{_NAME}\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\s*(?=\()")
_ATTRIBUTE = re.compile(r"\s*,\s*([\w.\-]+)\s*=\s*")
_WORD = re.compile(_NAME)
_NAMES = re.compile(rf"\{{?\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\}}?")
_NUMBER = re.compile(r"[0-9]{1,9}")
CLOSING = {"(": ")", "[": "]", "{": "}"}


class HloError(ValueError):
    """A file that is no HLO text, or a program that does not add up, in one line."""

    def __init__(self, what: str) -> None:
        super().__init__(" ".join(what.splitlines())[:ERROR_MAX])


@dataclass(frozen=True, slots=True)
class Instruction:
    """operands: names in the same computation. literal: of a constant, or a parameter's number.

    line: in the file. attributes: the text of each, without quotation marks.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...]
    attributes: dict[str, str]
    literal: str
    line: int


@dataclass(slots=True)
class Computation:
    """instructions: in the order of the text, each behind its operands; root: the result."""

    name: str
    line: int
    instructions: list[Instruction] = field(default_factory=list)
    named: dict[str, Instruction] = field(default_factory=dict)
    root: Instruction | None = None


@dataclass(slots=True)
class Module:
    """A program. partitions, replicas: of the header; 1 if it does not say."""

    name: str
    partitions: int
    replicas: int
    is_scheduled: bool
    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction, attribute: str) -> Computation:
        """The computation that an attribute names. HloError if there is none."""
        name = instruction.attributes.get(attribute, "").removeprefix("%")
        return self.computation(name, instruction)

    def computation(self, name: str, by: Instruction) -> Computation:
        if name not in self.computations:
            raise _no_computation(name, by)
        return self.computations[name]


def number_of(text: str) -> int | None:
    """A whole number of at most nine digits, as indices and numbers of parameters are."""
    return int(text) if _NUMBER.fullmatch(text) else None


def check_depth(computation: Computation, depth: int) -> None:
    """HloError if computations call each other too deeply, as one that calls itself does."""
    if depth > NESTING_MAX:
        raise HloError(
            f"line {computation.line}: computations call each other more than {NESTING_MAX} deep"
        )


def check_calls(computations: dict[str, Computation]) -> None:
    """HloError if an instruction calls a computation that is not there."""
    for one in (each for found in computations.values() for each in found.instructions):
        for attribute in CALLS:
            text = one.attributes.get(attribute, "")
            if not _NAMES.fullmatch(text):  # absent, or the text of a computation itself
                continue
            for name in re.findall(_NAME, text):
                if name not in computations:
                    raise _no_computation(name, one)
        if one.opcode == "async-start" and not one.attributes.get("calls"):
            raise HloError(f"line {one.line}: {one.name[:TEXT_SHOWN_MAX]} has no calls=")


def _no_computation(name: str, by: Instruction) -> HloError:
    shown = name[:TEXT_SHOWN_MAX] or "no computation"
    return HloError(f"line {by.line}: {by.name} calls {shown}, which the file does not have")


def read(file: Path) -> Module:
    """The program in a file of at most FILE_BYTES_MAX. HloError says what is wrong in one line."""
    try:
        text = read_text(file, FILE_BYTES_MAX)
    except OSError as error:
        raise HloError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise HloError(f"{file} is no text: {_not_text(error.object)}") from None
    try:
        return parse(text)
    except HloError as error:
        raise HloError(f"{file}: {error}") from None


def _not_text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is UTF-16, as PowerShell's > writes it: save it as UTF-8"
    return "give HLO text, not a proto (XLA_FLAGS=--xla_dump_hlo_as_text)"


def parse(text: str) -> Module:
    """The program in HLO text. HloError names the line."""
    return _Reader(text).module()


class _Reader:
    """Reads a text from its beginning to its end; `_at` is the position."""

    def __init__(self, text: str) -> None:
        self._text = _without_comments(text)
        self._at = 0
        self._line, self._counted = 1, 0

    def module(self) -> Module:
        self._space()
        match = _MODULE.match(self._text, self._at)
        if match is None:
            if re.match(r"module\s|#\w|func\.", self._text[self._at : self._at + 80]):
                raise self._error("this is MLIR: write lower(...).compile().as_text()")
            raise self._error("expected HloModule at the beginning of HLO text")
        self._at = match.end()
        header = self._attributes("")
        computations: dict[str, Computation] = {}
        entries = []
        while self._more():
            found, is_entry = self._computation()
            if found.name in computations:
                raise HloError(f"line {found.line}: a second computation {found.name}")
            computations[found.name] = found
            entries += [found] if is_entry else []
        if len(entries) != 1:
            raise self._error(f"the program has {len(entries)} ENTRY computations, not one")
        check_calls(computations)
        return Module(
            match[1],
            self._count(header, "num_partitions"),
            self._count(header, "replica_count"),
            header.get("is_scheduled") == "true",
            computations,
            entries[0],
        )

    def _count(self, header: dict[str, str], name: str) -> int:
        text = header.get(name, "1")
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
            raise HloError(f"line 1: {name}={text[:TEXT_SHOWN_MAX]}: expected a number from 1 on")
        return int(text)

    def _more(self) -> bool:
        """Skips tables of source locations; whether a computation follows."""
        self._space()
        while (match := _TABLE.match(self._text, self._at)) is not None:
            self._at = match.end()
            self._space()
        if _MODULE.match(self._text, self._at):
            raise self._error("a second HloModule: give a file with one program")
        return self._at < len(self._text)

    def _computation(self) -> tuple[Computation, bool]:
        head = _HEAD.match(self._text, self._at)
        if head is None:
            raise self._error("expected a computation")
        found = Computation(head[2], self._line_here())
        self._at = head.end()
        if self._text.startswith("(", self._at):
            self._skip_brackets()
        arrow = _ARROW.match(self._text, self._at)
        if arrow is not None:
            self._at = arrow.end()
            self._shape()
        begin = _BEGIN.match(self._text, self._at)
        if begin is None:
            raise self._error(f"expected {{ after the head of computation {found.name}")
        self._at = begin.end()
        self._instructions(found)
        thread = _THREAD.match(self._text, self._at)
        self._at = thread.end() if thread is not None else self._at
        if not found.instructions:
            raise HloError(f"line {found.line}: computation {found.name} has no instructions")
        found.root = found.root or found.instructions[-1]
        return found, bool(head[1])

    def _instructions(self, into: Computation) -> None:
        while True:
            self._space()
            if self._text.startswith("}", self._at):
                self._at += 1
                return
            left = _LEFT.match(self._text, self._at)
            if left is None:
                raise self._error(f"expected an instruction of {into.name}, or }}")
            line = self._line_here()
            self._at = left.end()
            one = self._instruction(left[2], line, into)
            if one.name in into.named:
                raise HloError(f"line {line}: a second {one.name} in {into.name}")
            into.instructions.append(one)
            into.named[one.name] = one
            into.root = one if left[1] else into.root

    def _instruction(self, name: str, line: int, within: Computation) -> Instruction:
        shape = self._shape()
        opcode = _OPCODE.match(self._text, self._at)
        if opcode is None:
            raise self._error("expected an operation and (")
        self._at = opcode.end()
        begin = self._at + 1
        self._skip_brackets()
        inside = self._text[begin : self._at - 1]
        operands: tuple[str, ...] = ()
        if opcode[1] not in NO_OPERANDS:
            operands = tuple(_operands(inside, line))
            for one in operands:
                if one not in within.named:
                    raise HloError(f"line {line}: operand {one[:TEXT_SHOWN_MAX]} is not defined")
        if len(operands) < (least := OPERANDS_MIN.get(opcode[1], 0)):
            raise HloError(
                f"line {line}: {opcode[1]} {name[:TEXT_SHOWN_MAX]} has "
                f"{counted(len(operands), 'operand')}: it needs {least}"
            )
        kept = inside.strip() if opcode[1] in NO_OPERANDS and len(inside) <= LITERAL_MAX else ""
        attributes = self._attributes(opcode[1])
        return Instruction(name, opcode[1], shape, operands, attributes, kept, line)

    def _attributes(self, opcode: str) -> dict[str, str]:
        """The attributes that follow, up to the end of the instruction."""
        found: dict[str, str] = {}
        while (match := _ATTRIBUTE.match(self._text, self._at)) is not None:
            begin = self._at = match.end()
            self._skip_value()
            name = match[1]
            if name not in KEPT or opcode not in ONLY_OF.get(name, {opcode}):
                continue
            if self._at - begin <= CONFIG_MAX or name != "backend_config":
                found[name] = self._text[begin : self._at].strip().strip('"')
        stop = self._text[self._at : self._at + 1]
        if stop in (",", ")", "]"):
            raise self._error(f"unexpected {stop}")
        return found

    def _skip_value(self) -> None:
        """Moves behind the value of an attribute: to a comma, the end of the line, or a }."""
        while (match := _STOP.search(self._text, self._at)) is not None:
            if match[0] in CLOSING:
                self._at = match.start()
                self._skip_brackets()
                continue
            is_string = match[0].startswith('"')
            self._at = match.end() if is_string else match.start()
            if not is_string:
                return
        self._at = len(self._text)

    def _skip_brackets(self) -> None:
        """Moves behind the bracket that closes the one at the position."""
        begin = self._at
        wanted: list[str] = []
        for match in _BRACKET.finditer(self._text, begin):
            if match[0] in CLOSING:
                wanted.append(CLOSING[match[0]])
            elif not match[0].startswith('"') and wanted.pop() != match[0]:
                self._at = match.start()
                raise self._error(f"unexpected {match[0]}")
            if not wanted:
                self._at = match.end()
                return
        raise self._error(f"{self._text[begin]} is not closed")

    def _shape(self) -> Shape:
        try:
            shape, self._at = parse_shape(self._text, self._at)
        except ShapeTextError as error:
            self._at = error.position
            raise self._error(str(error)) from None
        return shape

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _error(self, what: str) -> HloError:
        self._space()
        number = 1 + self._text.count("\n", 0, self._at)
        shown = self._text[self._at : self._at + TEXT_SHOWN_MAX].partition("\n")[0].strip()
        return HloError(f"line {number}: {what}: {shown!r}" if shown else f"line {number}: {what}")


def _without_comments(text: str) -> str:
    """The text without comments, with all ends of lines. HloError: a string or comment is open."""

    def kept(match: re.Match[str]) -> str:
        found = match[0]
        if found in ('"', "/*"):
            kind = "string" if found == '"' else "comment"
            line = 1 + text.count("\n", 0, match.start())
            raise HloError(f"line {line}: a {kind} is not closed")
        return found if found.startswith('"') else " " + "\n" * found.count("\n")

    return _COMMENT.sub(kept, text)


def _operands(inside: str, line: int) -> list[str]:
    """The names of operands; each may follow its shape, as in `f32[8]{0} %x, %y`."""
    found = []
    for one in _pieces(inside):
        words = one.split()
        match = _WORD.fullmatch(words[-1]) if words else None
        if match is None:
            shown = one.strip()[:TEXT_SHOWN_MAX]
            raise HloError(f"line {line}: {shown!r} is no operand")
        found.append(match[1])
    return found


def _pieces(inside: str) -> list[str]:
    """Splits at commas outside of brackets."""
    if not inside.strip():
        return []
    if not any(one in inside for one in "([{"):
        return inside.split(",")
    pieces, begin, depth = [], 0, 0
    for match in re.finditer(r"[()\[\]{},]", inside):
        if match[0] == ",":
            if depth == 0:
                pieces.append(inside[begin : match.start()])
                begin = match.end()
        else:
            depth += 1 if match[0] in CLOSING else -1
    return [*pieces, inside[begin:]]
