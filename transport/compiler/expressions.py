"""Checks the expressions of a hook: numbers from records, constants and plain calls.

lint.py checks the statements and calls this module for each value.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from types import FunctionType
from typing import NamedTuple

from congestion.api import MAX_PATHS, Record
from transport.compiler import source
from transport.compiler.errors import PolicyError
from transport.compiler.language import BUILTINS, CALLS_MAX, GLOBAL_REMEDIES, INT64_MAX, MATH


class Role(NamedTuple):
    """Which record an argument is, such as `flow` or `event`, and its fields."""

    name: str
    layout: Record
    many: bool = False  # True: the argument is the whole array of paths
    cores: frozenset[str] = frozenset()  # fields that weft writes, and policies only read


Roles = Mapping[str, Role]


@functools.lru_cache(maxsize=64)
def tree(file: str) -> ast.Module:
    return ast.parse(source.text_of(file), file)


def definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    for node in ast.walk(tree(code.co_filename)):
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
            continue
        # For a decorated function, co_firstlineno is the line of its first decorator.
        if code.co_firstlineno not in (node.lineno, *(d.lineno for d in node.decorator_list)):
            continue
        if not source.is_current(code):
            break
        return node
    if not source.is_current(code):
        raise PolicyError(
            code.co_filename,
            code.co_firstlineno,
            f"{code.co_name} differs from the file",
            "the file changed after Python had read it: restart the program",
        )
    raise PolicyError(
        code.co_filename,
        code.co_firstlineno,
        f"{code.co_name} is not a plain function",
        "write it with def",
    )


class Expressions:
    """Checks the expressions of one function, as one call with given arguments uses it.

    roles: for each argument that is a record or the paths, which record it is.
    """

    def __init__(
        self,
        function: FunctionType,
        roles: Roles,
        stack: tuple[FunctionType, ...],
        steps: int,
        calls: list[FunctionType],
    ) -> None:
        self.function = function
        self.file = function.__code__.co_filename
        self.node = definition(function)
        self.roles = dict(roles)
        self.stack = (*stack, function)
        self.steps = steps
        self.calls = calls  # one entry per helper call, as if every helper were inlined
        self.locals = frozenset(function.__code__.co_varnames)

    def refusal(self, node: ast.AST, reason: str, remedy: str) -> PolicyError:
        return PolicyError(self.file, getattr(node, "lineno", self.node.lineno), reason, remedy)

    def constant(self, node: ast.expr) -> int | None:
        """The value of a constant loop bound, or the maximum of len(paths), or None."""
        match node:
            case ast.Constant(value=int(value)):
                return int(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.constant(operand)
                return None if inner is None else -inner
            case ast.Name(id=name) if name not in self.locals:
                known = self.function.__globals__.get(name)
                return known if type(known) is int else None
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
                role = self.roles.get(name)
                if role and role.many and not role.layout.size_bytes:
                    raise self.refusal(
                        node, f"{name} is not an array of records", "declare path=record(...)"
                    )
                return MAX_PATHS if role and role.many else None
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute() as field]):
                role = self.record(field.value)
                if role is not None and field.attr in role[1].defaults:
                    shape = role[1].dtype[field.attr].shape
                    return int(shape[0]) if shape else None
        return None

    def record(self, node: ast.expr) -> Role | None:
        """Which record an expression is, or that it is the array of paths; None: neither."""
        match node:
            case ast.Name(id=name):
                return self.roles.get(name)
            case ast.Subscript(value=ast.Name(id=name)) if name in self.roles:
                role = self.roles[name]
                return role._replace(many=False) if role.many else None
        return None

    def value(self, node: ast.expr, bound: set[str], alias: bool = False) -> None:
        role = self.record(node)
        if role is not None:
            if not alias:
                raise self.refusal(
                    node, "a whole record is used as a number", "use one of its fields"
                )
            if isinstance(node, ast.Subscript):
                self.index(node.slice, MAX_PATHS, bound)
            return
        match node:
            case ast.Name():
                self.name(node, bound)
            case ast.Attribute():
                self.attribute(node, bound)
            case ast.Call():
                self.call(node, bound)
            case ast.Subscript(value=ast.Attribute() as field, slice=index):
                self.attribute(field, bound, indexed=True)
                role = self.record(field.value)
                size = role.layout.dtype[field.attr].shape[0] if role else 0
                self.index(index, size, bound)
            case ast.Subscript():
                raise self.refusal(
                    node, "only paths and array fields can be indexed", "use a record field"
                )
            case ast.Constant(value=value):
                if not isinstance(value, int | float):
                    raise self.refusal(node, f"{value!r} is not a number", "use numbers only")
                if isinstance(value, int) and value > INT64_MAX:
                    raise self.refusal(node, f"{value} does not fit an int64", "use a float")
            case ast.BinOp(op=ast.LShift() | ast.RShift(), left=left, right=right):
                self.shift(right)
                self.value(left, bound)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, bound)

    def index(self, node: ast.expr, size: int, bound: set[str]) -> None:
        """Refuses a constant index out of range; other indices are checked at run time."""
        self.value(node, bound)
        if isinstance(node, ast.Call):
            return  # len(paths) has only a constant maximum: the index is checked at run time
        constant = self.constant(node)
        if constant is not None and not 0 <= constant < size:
            raise self.refusal(
                node, f"index {constant} is out of range", f"use 0 to {size - 1}, or len(...) - 1"
            )

    def name(self, node: ast.Name, bound: set[str]) -> None:
        if node.id in self.locals:
            if node.id not in bound:
                raise self.refusal(node, f"{node.id} may be read before it is set", "set it first")
            return
        known = self.function.__globals__.get(node.id)
        if not isinstance(known, int | float):
            raise self.refusal(
                node,
                f"{node.id} is not a constant number",
                GLOBAL_REMEDIES.get(node.id, "use a number, a record or an argument"),
            )

    def attribute(self, node: ast.Attribute, bound: set[str], indexed: bool = False) -> None:
        role = self.record(node.value)
        if role is not None and not role[2]:
            if isinstance(node.value, ast.Subscript):
                self.index(node.value.slice, MAX_PATHS, bound)
            elif isinstance(node.value, ast.Name) and node.value.id not in bound:
                raise self.refusal(
                    node, f"{node.value.id} may be read before it is set", "set it first"
                )
            if node.attr not in role[1].defaults:
                there = ", ".join(role[1].defaults) or "none"
                raise self.refusal(
                    node, f"{role[0]} has no field {node.attr!r}", f"its fields: {there}"
                )
            if bool(role[1].dtype[node.attr].shape) != indexed:
                raise self.refusal(
                    node,
                    f"{node.attr} is {'a number' if indexed else 'an array'}",
                    "index array fields, and only those",
                )
            return
        if isinstance(node.value, ast.Name) and node.value.id not in self.locals:
            module = self.function.__globals__.get(node.value.id)
            if module is math and node.attr in MATH:
                return
            raise self.refusal(
                node,
                f"{node.value.id}.{node.attr} is not available",
                GLOBAL_REMEDIES.get(node.value.id, "use math: " + ", ".join(sorted(MATH))),
            )
        raise self.refusal(
            node, "only records have fields", "use flow, params, event, result or a path"
        )

    def call(self, node: ast.Call, bound: set[str]) -> None:
        if node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
            raise self.refusal(
                node, "only positional arguments are supported", "give them in order"
            )
        if isinstance(node.func, ast.Attribute):
            self.attribute(node.func, bound)
        elif not isinstance(node.func, ast.Name):
            raise self.refusal(node, "only named functions can be called", "call it by its name")
        elif isinstance(helper := self.function.__globals__.get(node.func.id), FunctionType):
            self.helper(node, helper, bound)
            return
        elif node.func.id not in BUILTINS or node.func.id in self.function.__globals__:
            raise self.refusal(
                node,
                f"{node.func.id} cannot be called here",
                GLOBAL_REMEDIES.get(node.func.id, "use " + ", ".join(sorted(BUILTINS))),
            )
        elif node.func.id == "len":
            if self.constant(node) is None:
                raise self.refusal(
                    node, "len needs a fixed size", "use len(paths) or len of an array field"
                )
            return
        elif node.func.id == "range":
            raise self.refusal(node, "range outside a loop", "write for i in range(8)")
        else:
            self.arity(node, node.func.id)
        for argument in node.args:
            self.value(argument, bound)

    def shift(self, by: ast.expr) -> None:
        if not isinstance(by, ast.Constant) or by.value not in range(64):
            raise self.refusal(by, "a shift by a variable is undefined past 63", "use a constant")

    def arity(self, node: ast.Call, name: str) -> None:
        """Checks a builtin's argument count: min(x) fails in Python, but gives x when compiled."""
        given = len(node.args)
        if (given < 2) if name in {"min", "max"} else (given != 1):
            raise self.refusal(
                node,
                f"{name} got {given} arguments",
                "min and max take two or more, other functions one",
            )

    def helper(self, node: ast.Call, helper: FunctionType, bound: set[str]) -> None:
        self.calls.append(helper)
        if len(self.calls) > CALLS_MAX:
            raise self.refusal(
                node, f"more than {CALLS_MAX} calls after inlining", "call helpers less often"
            )
        if helper in self.stack:
            raise self.refusal(
                node, f"{helper.__name__} calls itself", "loop over a constant range"
            )
        names = helper.__code__.co_varnames[: helper.__code__.co_argcount]
        if len(names) != len(node.args):
            raise self.refusal(
                node, f"{helper.__name__} takes {len(names)} arguments", "give them all"
            )
        roles = {}
        for name, argument in zip(names, node.args, strict=True):
            self.value(argument, bound, alias=True)
            role = self.record(argument)
            if role is not None:
                roles[name] = role
        self.enter(helper, roles)

    def enter(self, helper: FunctionType, roles: Roles) -> None:
        """Checks a helper's body. roles: the arguments of this call that are records or paths."""
        raise NotImplementedError
