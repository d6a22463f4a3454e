"""Makes a program, as HLO has them, of an FX graph with functional collectives.

The collectives are those of torch.distributed._functional_collectives: an operation of
_c10d_functional starts one, and wait_tensor ends it (github.com/pytorch/pytorch,
torch/csrc/distributed/c10d/Functional.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transport.estimate.graphs.fx_costs import flops_of
from transport.estimate.graphs.fx_text import (
    ATTRIBUTE,
    GETITEM,
    PLACEHOLDER,
    SCALAR,
    Ref,
    Statement,
    Text,
)
from transport.estimate.graphs.members import Members
from transport.estimate.hlo.costs import GIVEN
from transport.estimate.hlo.shapes import Array, Shape
from transport.estimate.hlo.text import Computation, HloError, Instruction, Module

FUNCTIONAL, LISTED = "_c10d_functional", "c10d_functional"
# Operation -> kind of collective, places of the group's size and name among the arguments.
COLLECTIVES: dict[str, tuple[str, int | None, int]] = {
    "all_reduce": ("all-reduce", None, 2),
    "all_gather_into_tensor": ("all-gather", 1, 2),
    "all_gather_into_tensor_out": ("all-gather", 1, 2),
    "reduce_scatter_tensor": ("reduce-scatter", 2, 3),
    "all_to_all_single": ("all-to-all", None, 3),
    "broadcast": ("collective-broadcast", None, 2),
}
REDUCTIONS = {"all-reduce", "reduce-scatter"}  # whose second argument is the operation
COMMUNICATE = ("c10d", "_c10d_functional_autograd", "_dtensor", "symm_mem", "fsdp")
# Operations that make no data: views, and marks.
VIEWS = {
    *("view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze"),
    *("expand", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "as_strided"),
    *("flatten", "unflatten", "narrow", "diagonal", "unfold", "view_as", "expand_as", "numpy_T"),
    *("sym_size", "sym_numel", "sym_stride", "sym_constrain_range_for_size", "_assert_scalar"),
    *("_assert_async", "_assert_tensor_metadata", "view_as_real", "view_as_complex", "empty"),
    *("new_empty", "empty_like", "empty_strided", "new_empty_strided", "squeeze_", "resize_"),
}
SAME = {"alias", "detach", "lift_fresh", "lift_fresh_copy"}  # data of the argument
COPIES = {"clone", "contiguous"}
GATHERS = {"embedding", "index_select", "gather", "index"}
COALESCED_MAX = 1 << 14


def module_of(text: Text, members: Members, name: str) -> tuple[Module, list[str]]:
    """The program of a graph, and notes on it. HloError names the line."""
    return _Builder(text, members).module(name)


class _Builder:
    def __init__(self, text: Text, members: Members) -> None:
        self._text, self._members = text, members
        self._entry = Computation("graph", 1)
        self._names: dict[str, str] = {}  # of a statement -> that of its instruction
        self._shapes: dict[str, Array] = {}  # by statement
        self._elements = _elements(text.statements)
        self._started: dict[str, tuple[str, int | None]] = {}  # (start, element) by statement
        self._ended: dict[str, str] = {}  # start -> its done
        self._results: dict[str, Shape] = {}  # of starts
        self._reductions: dict[str, Computation] = {}
        self._unjudged: dict[str, None] = {}

    def module(self, name: str) -> tuple[Module, list[str]]:
        for one in self._text.statements:
            self._sized(one)
        for one in self._text.statements:
            self._add(one)
        notes = [
            *self._text.notes,
            *self._members.all_notes(),
            "operations are taken as they stand in the graph: kernels that a compiler fuses "
            "move fewer bytes",
        ]
        if self._unjudged:
            notes.append(f"communication that is not judged: {', '.join(self._unjudged)}")
        if not self._entry.instructions:
            raise HloError(f"line {self._entry.line}: the graph is empty")
        self._entry.root = self._entry.instructions[-1]
        computations = {"graph": self._entry, **self._reductions}
        module = Module(name, self._members.devices, 1, True, computations, self._entry)
        return module, notes

    def _sized(self, one: Statement) -> None:
        """Notes the size of a collective's group."""
        kind = _collective(one)
        if kind is not None and kind[1] is not None and not one.target.startswith(LISTED):
            group = _group_name(one, kind[2])
            self._members.sized(group, _at(one, kind[1]), f"line {one.line}")

    def _add(self, one: Statement) -> None:
        if one.symbolic:
            raise HloError(
                f"line {one.line}: {one.name} has the shape {one.symbolic[:60]}: export the graph "
                "with sizes that are numbers (dynamic=False, without dynamic_shapes)"
            )
        namespace, name = _split(one.target)
        if one.target in (PLACEHOLDER, ATTRIBUTE, SCALAR):
            opcode = "parameter" if one.target == PLACEHOLDER else "constant"
            self._instruction(one, opcode, [])
        elif one.target == GETITEM:
            self._getitem(one)
        elif name == "wait_tensor":
            self._wait(one)
        elif (kind := _collective(one)) is not None:
            self._start(one, kind)
        else:
            if namespace in (FUNCTIONAL, LISTED, *COMMUNICATE):
                self._unjudged[f"{namespace}.{name}"[:80]] = None
            self._compute(one, namespace, name)

    def _instruction(
        self,
        one: Statement,
        opcode: str,
        operands: list[str],
        attributes: dict[str, str] | None = None,
        shape: Shape | None = None,
    ) -> str:
        """Adds an instruction with the name of a statement."""
        if one.name in self._entry.named:
            raise HloError(f"line {one.line}: a second {one.name[:40]}")
        result = shape or one.shape or self._elements.get(one.name) or Array("token", ())
        made = Instruction(
            one.name, opcode, result, tuple(operands), attributes or {}, "", one.line
        )
        self._entry.instructions.append(made)
        self._entry.named[one.name] = made
        self._names[one.name] = one.name
        if one.shape is not None:
            self._shapes[one.name] = one.shape
        return one.name

    def _operands(self, one: Statement, arguments: Any = None) -> list[str]:
        """The instructions whose results a statement takes."""
        given = [*one.arguments, *one.keywords.values()] if arguments is None else arguments
        found = []
        for ref in _refs(given):
            if ref.name not in self._names:
                raise HloError(f"line {one.line}: operand {ref.name[:40]} is not defined")
            found.append(self._names[ref.name])
        return found

    def _getitem(self, one: Statement) -> None:
        base, place = one.arguments
        if not isinstance(base, Ref) or base.name not in self._names:
            raise HloError(f"line {one.line}: {one.name[:40]} is an element of an unknown tuple")
        if base.name in self._started and isinstance(place, int):
            self._started[one.name] = (self._started[base.name][0], place)
        index = {"index": str(place)} if isinstance(place, int) else {}
        self._instruction(one, "get-tuple-element", [self._names[base.name]], index)

    def _start(self, one: Statement, kind: tuple[str, int | None, int]) -> None:
        """Begins a collective. Its result is known by the statement, or by those that wait."""
        opcode, _, place = kind
        operands = self._operands(one, one.arguments[:1])
        for name in operands:
            if self._entry.named[name].shape == Array("token", ()):
                raise HloError(
                    f"line {one.line}: {name[:40]}, which {one.name} sends, has no shape"
                )
        attributes = {"use_global_device_ids": "true", "replica_groups": self._groups(one, place)}
        if opcode in REDUCTIONS:
            attributes["to_apply"] = self._reduction(str(_at(one, 1))[:40], one.line)
        self._instruction(one, f"{opcode}-start", operands, attributes)
        if not operands:
            raise HloError(f"line {one.line}: {one.name[:40]} sends nothing")
        self._results[one.name] = self._entry.named[one.name].shape
        self._started[one.name] = (one.name, None)
        self._replaced(one)

    def _groups(self, one: Statement, place: int) -> str:
        where = f"line {one.line}"
        if not one.target.startswith(LISTED):
            return self._members.text(_group_name(one, place), where)
        ranks = one.arguments[-2] if len(one.arguments) > 1 else None
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            raise HloError(f"{where}: {one.name[:40]} has no list of ranks")
        self._members.sized(str(ranks), len(ranks), where)
        return "{{" + ",".join(map(str, ranks)) + "}}"

    def _reduction(self, operation: str, line: int) -> str:
        """A computation with the name of a reduction, which tells equal collectives apart."""
        if operation not in self._reductions:
            root = Instruction(operation, operation, Array("f32", ()), (), {}, "", line)
            self._reductions[operation] = Computation(
                operation, line, [root], {operation: root}, root
            )
        return operation

    def _wait(self, one: Statement) -> None:
        """Ends a collective; of several tensors, the first one that is waited for ends all."""
        source = one.arguments[0] if one.arguments else None
        if not isinstance(source, Ref) or source.name not in self._started:
            self._instruction(one, "opt-barrier", self._operands(one))  # of another graph
            return
        start, element = self._started[source.name]
        if start not in self._ended:
            kind = self._entry.named[start].opcode.removesuffix("-start")
            shape = self._results[start] if element is not None else one.shape
            self._ended[start] = f"{start}.done" if element is not None else one.name
            done = Statement(self._ended[start], one.line, "", one.shape)
            self._instruction(done, f"{kind}-done", [start], shape=shape)
        if self._ended[start] != one.name:
            index = {"index": str(element or 0)}
            self._instruction(one, "get-tuple-element", [self._ended[start]], index)
        self._replaced(one)

    def _compute(self, one: Statement, namespace: str, name: str) -> None:
        operands = self._operands(one)
        plain = name if name.startswith("__") else name.removesuffix("_")
        if namespace not in ("aten", "prims"):
            target = {"custom_call_target": f"{namespace}.{name}"[:80]}
            self._instruction(one, "custom-call", operands, target)
        elif name in VIEWS:
            self._instruction(one, "bitcast", operands)
        elif name in SAME:
            self._instruction(one, "opt-barrier", operands)
        elif name in COPIES:
            self._instruction(one, "copy", operands)
        elif name in GATHERS:
            self._instruction(one, "gather", operands)
        else:
            try:
                flops = flops_of(plain, one, self._shapes)
            except KeyError:
                raise HloError(
                    f"line {one.line}: {one.name[:40]} needs the shapes of its result and of its "
                    "operands, which the text does not have"
                ) from None
            given = {} if flops is None else {"flops": str(flops)}
            self._instruction(one, f"aten.{name}" if flops is None else GIVEN, operands, given)
        if plain != name:
            self._replaced(one)

    def _replaced(self, one: Statement) -> None:
        """After an operation in place, the name of its operand stands for the result."""
        name = _split(one.target)[1]
        first = one.arguments[0] if one.arguments else None
        if not name.endswith("_") or name.startswith("__"):
            return
        for ref in _refs([first]):
            self._names[ref.name] = one.name
            if one.name in self._started:
                self._started[ref.name] = self._started[one.name]


def _split(target: str) -> tuple[str, str]:
    """Namespace and name of an operation, without its overload: aten.mm.default."""
    parts = target.split(".")
    return parts[0], parts[1] if len(parts) > 1 else ""


def _collective(one: Statement) -> tuple[str, int | None, int] | None:
    namespace, name = _split(one.target)
    if namespace not in (FUNCTIONAL, LISTED):
        return None
    return COLLECTIVES.get(name.removesuffix("_").removesuffix("_coalesced"))


def _at(one: Statement, place: int) -> Any:
    return one.arguments[place] if place < len(one.arguments) else None


def _group_name(one: Statement, place: int) -> str:
    name = one.keywords.get("group_name", _at(one, place))
    if not isinstance(name, str | int):
        raise HloError(f"line {one.line}: {one.name[:40]} has no name of a process group")
    return str(name)


def _refs(value: Any) -> Iterator[Ref]:
    """The results of other statements in arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _refs(one)


def _elements(statements: list[Statement]) -> dict[str, Shape]:
    """The shape of each tuple, from those of the elements that are taken of it."""
    found: dict[str, dict[int, Array]] = {}
    for one in statements:
        base, place = one.arguments if one.target == GETITEM else (None, None)
        if isinstance(base, Ref) and one.shape is not None and type(place) is int:
            if not 0 <= place < COALESCED_MAX:
                raise HloError(f"line {one.line}: element {place} of a tuple: at most 16,383")
            found.setdefault(base.name, {})[place] = one.shape
    none = Array("token", ())
    return {
        name: tuple(parts.get(at, none) for at in range(max(parts) + 1))
        for name, parts in found.items()
    }
