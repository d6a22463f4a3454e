"""Reads the text of an FX graph: what print(exported_program) and print_readable() write.

A graph is a function of Python, whose lines are `name: "f32[8, 4]" = torch.ops...(...);  x = None`
(github.com/pytorch/pytorch, torch/fx/graph.py, CodeGen). Lines of TORCH_LOGS=aot_graphs may have
the prefix of the log. Nothing of it is executed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from transport.estimate.hlo.shapes import (
    DIMENSIONS_MAX,
    ELEMENTS_MAX,
    Array,
    bits_of,
)
from transport.estimate.hlo.text import TEXT_SHOWN_MAX, HloError

LINE_MAX = 4 << 20
DEPTH_MAX = 16  # of lists in arguments
OPS = "torch.ops."
SCALARS = ("operator.", "math.", "torch.sym_", "torch._check", "getattr")  # of sizes
GETITEM, ATTRIBUTE, PLACEHOLDER, SCALAR = "getitem", "attribute", "placeholder", "scalar"
# Types of PyTorch whose names in HLO differ.
TYPES = {"b8": "pred", **{f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}}
_LOG = re.compile(r"^(?:\[rank\d+\]:)?[VDIWE]\d{4} \d\d:\d\d:\S+ [^\]]*\] ?(?:\[[^\]]*\] ?)*")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_DEF = re.compile(r"(\s*)def \w+\(")
_SHAPE = re.compile(r"\s*([a-z]\w*)\[([^\]]*)\]")
_PRINTED = re.compile(r"\s*%\w+ : \[num_users=")


@dataclass(frozen=True)
class Ref:
    """An argument that is the result of another statement."""

    name: str


@dataclass
class Statement:
    """A node of the graph. target: `aten.mm.default`, or GETITEM and so on.

    shape: None: the text has none. symbolic: the text of a shape whose sizes are not numbers.
    """

    name: str
    line: int
    target: str
    shape: Array | None = None
    symbolic: str = ""
    arguments: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass
class Text:
    """The statements of a graph in their order, and notes on what was not read."""

    statements: list[Statement]
    notes: list[str]


def parse(text: str, number: int | None = None) -> Text:
    """The graph in a text. number: which, from 1 on; None: the only one. HloError: a line."""
    lines = [_LOG.sub("", _COLOR.sub("", line)) for line in text.splitlines()]
    begins = _graphs(lines)
    if number is None and len(begins) > 1:
        shown = ", ".join(str(begin + 1) for begin in begins[:8]) + ", ..." * (len(begins) > 8)
        raise HloError(f"{len(begins)} graphs, at lines {shown}: --graph 1 takes the first")
    if number is not None and number > len(begins):
        raise HloError(f"--graph {number}: the text has {len(begins)} graphs")
    end = [*begins, len(lines)][number or 1]
    return _Reader(lines[:end]).read(begins[(number or 1) - 1])


def _graphs(lines: list[str]) -> list[int]:
    """The line at which each graph begins; those inside of another one do not count."""
    begins: list[int] = []
    indent = 0
    for at, line in enumerate(lines):
        if len(line) > LINE_MAX:
            raise HloError(f"line {at + 1}: longer than {LINE_MAX >> 20} MiB")
        begin = _DEF.match(line)
        if begin is not None and (not begins or len(begin[1]) <= indent):
            begins.append(at)
            indent = len(begin[1])
        elif not begins and _PRINTED.match(line):
            raise HloError(
                f"line {at + 1}: print(graph) has no shapes: give what "
                "print(exported_program) or graph_module.print_readable() writes"
            )
    if not begins:
        raise HloError("there is no graph: no line begins with def forward(")
    return begins


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._found: list[Statement] = []
        self._named: dict[str, Statement] = {}
        self._notes: list[str] = []

    def read(self, begin: int) -> Text:
        """Reads the graph whose head is at this place."""
        self._head(self._lines[begin].strip(), begin + 1)
        ended = False
        for at in range(begin + 1, len(self._lines)):
            if _DEF.match(self._lines[at]):
                self._notes.append("subgraphs of the graph are not judged")
                break
            if not ended:
                ended = self._line(self._lines[at].strip(), at + 1)
        if not ended:
            raise HloError(f"line {len(self._lines)}: the graph ends without return")
        return Text(self._found, self._notes)

    def _head(self, line: str, number: int) -> None:
        """Reads the inputs."""
        (function,) = _parsed(f"{line.rstrip()} pass", number)
        if not isinstance(function, ast.FunctionDef):
            raise HloError(f"line {number}: expected def forward(...):")
        for one in function.args.args:
            if one.arg != "self":
                self._add(Statement(one.arg, number, PLACEHOLDER), one.annotation)

    def _line(self, line: str, number: int) -> bool:
        """Reads a statement; True for the return."""
        if not line or line.startswith(("#", "class ")):
            return False
        first = _parsed(line, number)[0]
        if isinstance(first, ast.Return):
            return True
        if isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name):
            name, value, annotation = first.target.id, first.value, first.annotation
        elif isinstance(first, ast.Assign) and len(first.targets) == 1:
            if not isinstance(first.targets[0], ast.Name):
                return False  # unpacks the inputs
            name, value, annotation = first.targets[0].id, first.value, None
        elif isinstance(first, ast.Expr):
            name, value, annotation = f"_{number}", first.value, None
        else:
            raise HloError(f"line {number}: expected a node of a graph: {_short(line)}")
        if value is None:  # print_readable() repeats inputs with their shapes
            known = self._named.get(name) or Statement(name, number, PLACEHOLDER)
            if name not in self._named:
                self._add(known, annotation)
            known.shape, known.symbolic = _shape_of(annotation, number)
            return False
        made = _statement(name, value, number)
        if made is not None:
            self._add(made, annotation)
        return False

    def _add(self, one: Statement, annotation: ast.expr | None) -> None:
        one.shape, one.symbolic = _shape_of(annotation, one.line)
        self._named[one.name] = one
        self._found.append(one)


def _parsed(line: str, number: int) -> list[ast.stmt]:
    try:
        found = ast.parse(line).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = []
    if not found:
        raise HloError(f"line {number}: expected a node of a graph: {_short(line)}")
    return found


def _short(text: str) -> str:
    return repr(text[:TEXT_SHOWN_MAX])


def _statement(name: str, value: ast.expr, number: int) -> Statement | None:
    """The statement of an assigned value; None: it makes no tensor."""
    if isinstance(value, ast.Constant):
        return None
    if isinstance(value, ast.Subscript):
        return Statement(
            name, number, GETITEM, arguments=[_value(value.value), _value(value.slice)]
        )
    if isinstance(value, ast.Name):
        return Statement(name, number, "aten.alias.default", arguments=[Ref(value.id)])
    if isinstance(value, ast.Attribute):
        return Statement(name, number, ATTRIBUTE)
    if not isinstance(value, ast.Call):
        return Statement(name, number, SCALAR)  # arithmetic of sizes
    target = _dotted(value.func)
    if target.startswith(SCALARS):
        return Statement(name, number, SCALAR)
    if not target.startswith(OPS):
        raise HloError(
            f"line {number}: {target[:TEXT_SHOWN_MAX]} is no operation of ATen: give a graph of "
            "torch.export, or of TORCH_LOGS=aot_graphs"
        )
    keywords = {one.arg: _value(one.value) for one in value.keywords if one.arg is not None}
    arguments = [_value(one) for one in value.args]
    return Statement(name, number, target.removeprefix(OPS), None, "", arguments, keywords)


def _dotted(value: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    return ".".join([value.id if isinstance(value, ast.Name) else "", *reversed(parts)])


def _value(value: ast.expr, depth: int = 0) -> Any:
    """An argument: a Ref, a constant, a list; None: of another kind, as a type."""
    if isinstance(value, ast.Name):
        return Ref(value.id)
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        inner = _value(value.operand, depth + 1)
        return -inner if isinstance(inner, int | float) else None
    if isinstance(value, ast.List | ast.Tuple) and depth < DEPTH_MAX:
        return [_value(one, depth + 1) for one in value.elts]
    return None


def _shape_of(annotation: ast.expr | None, number: int) -> tuple[Array | None, str]:
    """The shape of an annotation, or its text if sizes are not numbers."""
    if annotation is None:
        return None, ""
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    match = _SHAPE.match(text) if isinstance(text, str) else None
    if match is None:
        return None, ""
    dtype = TYPES.get(match[1], match[1])
    try:
        bits_of(dtype)
    except KeyError:
        raise HloError(f"line {number}: unknown element type {match[1][:32]}") from None
    sizes = [one.strip() for one in match[2].split(",") if one.strip()]
    if not all(re.fullmatch(r"[0-9]{1,19}", one) for one in sizes):
        return None, match[0].strip()
    dims = tuple(map(int, sizes))
    elements = 1
    for size in dims:
        elements *= max(size, 1)
    if len(dims) > DIMENSIONS_MAX or elements > ELEMENTS_MAX:
        raise HloError(
            f"line {number}: more than {DIMENSIONS_MAX} dimensions or 2^62 elements: "
            f"{_short(match[0])}"
        )
    return Array(dtype, dims), ""
