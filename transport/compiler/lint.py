"""Decides which Python a policy may be written in, before anything is compiled.

Never touches types: what only typing can show is refused in lower.py.

What is let through means the same interpreted and compiled, ends after a bounded number of steps,
reads nothing but its records, and writes only to the state and the result.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType

from congestion.api import MAX_PATHS, Policy, Record
from transport.compiler.errors import PolicyError
from transport.compiler.language import (
    ALLOWED,
    BUILTINS,
    CALLS_MAX,
    ERRORS,
    GLOBAL_REMEDIES,
    INT64_MAX,
    MATH,
    READ_ONLY,
    REMEDIES,
    STEPS_MAX,
)

# What a name stands for: the record's role and, for paths, whether it is the whole array.
Roles = Mapping[str, tuple[str, Record, bool]]


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"), file)


def definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    for node in ast.walk(_tree(code.co_filename)):
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
            continue
        # With decorators the code object begins at the first of them.
        if code.co_firstlineno in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return node
    raise PolicyError(
        code.co_filename,
        code.co_firstlineno,
        f"{code.co_name} is not a plain function",
        "write it with def",
    )


class _Function:
    """Checks one function for the roles its arguments have at one call."""

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
        self.calls = calls  # of helpers, all of them, as inlining writes them out
        self.locals = frozenset(function.__code__.co_varnames)

    def refusal(self, node: ast.AST, reason: str, remedy: str) -> PolicyError:
        return PolicyError(self.file, getattr(node, "lineno", self.node.lineno), reason, remedy)

    def check(self) -> None:
        if self.node.decorator_list:
            raise self.refusal(self.node, "a decorator changes the function", "remove it")
        given = self.node.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults:
            raise self.refusal(self.node, "only plain arguments are possible", "write each one out")
        if self.function.__code__.co_freevars:
            raise self.refusal(
                self.node, "the function closes over variables", "move it to the top level"
            )
        body = self.node.body
        for statement in body:
            self.shape(statement)
        self.block(body, {item.arg for item in given.args})

    def shape(self, statement: ast.stmt) -> None:
        """No construct outside the allowed ones, wherever it hides."""
        annotations = {
            id(node.annotation) for node in ast.walk(statement) if isinstance(node, ast.AnnAssign)
        }
        for node in ast.walk(statement):
            if id(node) in annotations:
                continue
            if type(node) in REMEDIES or not isinstance(node, ALLOWED):
                reason, remedy = REMEDIES.get(
                    type(node),
                    (
                        f"{type(node).__name__} is not part of the policy language",
                        "use numbers, records, if and bounded for",
                    ),
                )
                raise self.refusal(node if hasattr(node, "lineno") else statement, reason, remedy)

    # Statements. Each returns the names bound after it, None when it does not fall through.

    def block(self, statements: list[ast.stmt], bound: set[str]) -> set[str] | None:
        after: set[str] | None = set(bound)
        for statement in statements:
            if after is None:
                raise self.refusal(statement, "this is never reached", "remove it")
            after = self.statement(statement, after)
        return after

    def statement(self, node: ast.stmt, bound: set[str]) -> set[str] | None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.value(value, bound, alias=isinstance(target, ast.Name))
                return self.store(target, value, bound)
            case ast.Assign():
                raise self.refusal(
                    node, "several targets in one assignment", "write them one by one"
                )
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.value(value, bound)
                return self.store(target, value, bound)
            case ast.AugAssign():
                if isinstance(node.target, ast.Name):
                    self.name(node.target, bound)
                self.value(node.value, bound)
                return self.store(node.target, node.value, bound)
            case ast.If():
                self.value(node.test, bound)
                one, other = self.block(node.body, bound), self.block(node.orelse, bound)
                return other if one is None else one if other is None else one & other
            case ast.For():
                self.loop(node, bound)
                return bound
            case ast.Return():
                if node.value is not None:
                    if len(self.stack) == 1:
                        raise self.refusal(node, "a hook returns nothing", "write to result")
                    self.value(node.value, bound)
                return None
            case ast.Raise():
                self.raised(node)
                return None
            case ast.Assert():
                self.value(node.test, bound)
                return bound
            case ast.Break() | ast.Continue():
                return None
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                return bound
            case ast.Expr(value=ast.Call() as call):
                self.value(call, bound)
                return bound
        raise self.refusal(node, "this statement has no effect", "remove it")

    def raised(self, node: ast.Raise) -> None:
        what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if not isinstance(what, ast.Name) or what.id not in ERRORS or node.cause is not None:
            raise self.refusal(
                node, "only plain built-in errors can be raised", 'raise ValueError("why")'
            )

    def loop(self, node: ast.For, bound: set[str]) -> None:
        remedy = "write for i in range(8) or for i in range(len(paths))"
        call = node.iter
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "range"
            and not call.keywords
        ):
            raise self.refusal(node, "a loop runs over a range only", remedy)
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise self.refusal(node, "a loop has one counter and no else", remedy)
        if node.target.id in self.roles:
            raise self.refusal(node, f"{node.target.id} is a record", "use another name")
        bounds = [self.constant(argument) for argument in call.args]
        if any(limit is None for limit in bounds) or (len(bounds) == 3 and bounds[2] == 0):
            raise self.refusal(node, "the range is not constant", remedy)
        limits = [limit for limit in bounds if limit is not None]
        if any(abs(limit) > INT64_MAX // 4 for limit in limits):
            raise self.refusal(node, "the range is out of reach", remedy)
        trips = len(range(*limits))
        if self.steps * trips > STEPS_MAX:
            raise self.refusal(
                node,
                f"the loops take up to {self.steps * trips} steps",
                f"at most {STEPS_MAX} are allowed",
            )
        outer, self.steps = self.steps, self.steps * max(trips, 1)
        self.block(node.body, bound | {node.target.id})
        self.steps = outer

    def constant(self, node: ast.expr) -> int | None:
        """The value of a loop bound, the largest possible one for len."""
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
                return MAX_PATHS if role and role[2] and role[1].size_bytes else None
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute() as field]):
                role = self.record(field.value)
                if role is not None and field.attr in role[1].defaults:
                    shape = role[1].dtype[field.attr].shape
                    return int(shape[0]) if shape else None
        return None

    # Expressions.

    def record(self, node: ast.expr) -> tuple[str, Record, bool] | None:
        """The role of an expression that stands for one record or for the paths."""
        match node:
            case ast.Name(id=name):
                return self.roles.get(name)
            case ast.Subscript(value=ast.Name(id=name)) if name in self.roles:
                role, layout, many = self.roles[name]
                return (role, layout, False) if many else None
        return None

    def store(self, target: ast.expr, value: ast.expr, bound: set[str]) -> set[str]:
        match target:
            case ast.Name(id=name):
                role = self.record(value)
                if name in self.roles and role != self.roles[name]:
                    raise self.refusal(
                        target, f"{name} is a record", "use another name for a number"
                    )
                if role is not None:
                    if name in bound and name not in self.roles:
                        raise self.refusal(
                            target, f"{name} is a number already", "use another name"
                        )
                    self.roles[name] = role
                return bound | {name}
            case ast.Tuple(elts=elements):
                for element in elements:
                    bound = self.store(element, ast.Constant(0), bound)
                return bound
            case ast.Attribute():
                self.writable(target)
                self.value(target, bound)
                return bound
            case ast.Subscript(value=ast.Attribute() as field):
                self.writable(field)
                self.value(target, bound)
                return bound
        raise self.refusal(
            target, "only fields of a record can be written", "write flow.name = value"
        )

    def writable(self, target: ast.Attribute) -> None:
        role = self.record(target.value)
        if role is not None and role[0] in READ_ONLY:
            raise self.refusal(
                target, f"{role[0]} is read only", "keep the value in the flow record"
            )

    def value(self, node: ast.expr, bound: set[str], alias: bool = False) -> None:
        role = self.record(node)
        if role is not None:
            if not alias:
                raise self.refusal(
                    node, "a whole record is used as a number", "use one of its fields"
                )
            if isinstance(node, ast.Subscript):
                self.value(node.slice, bound)
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
                self.value(index, bound)
            case ast.Subscript():
                raise self.refusal(
                    node, "only paths and array fields are indexed", "use a record field"
                )
            case ast.Constant(value=value):
                if not isinstance(value, int | float):
                    raise self.refusal(node, f"{value!r} is not a number", "use numbers only")
                if isinstance(value, int) and value > INT64_MAX:
                    raise self.refusal(node, f"{value} does not fit an int64", "use a float")
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, bound)

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
                self.value(node.value.slice, bound)
            elif isinstance(node.value, ast.Name) and node.value.id not in bound:
                raise self.refusal(
                    node, f"{node.value.id} may be read before it is set", "set it first"
                )
            if node.attr not in role[1].defaults:
                there = ", ".join(role[1].defaults) or "none"
                raise self.refusal(
                    node, f"{role[0]} has no field {node.attr!r}", f"there are: {there}"
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
            raise self.refusal(node, "only plain arguments are possible", "give them in order")
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
                    node, "len of something without a fixed size", "len(paths) is possible"
                )
            return
        elif node.func.id == "range":
            raise self.refusal(node, "range outside a loop", "write for i in range(8)")
        for argument in node.args:
            self.value(argument, bound)

    def helper(self, node: ast.Call, helper: FunctionType, bound: set[str]) -> None:
        self.calls.append(helper)
        if len(self.calls) > CALLS_MAX:
            raise self.refusal(
                node, f"more than {CALLS_MAX} calls when written out", "call helpers less often"
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
        _Function(helper, roles, self.stack, self.steps, self.calls).check()


def check(policy: Policy) -> None:
    """Raises PolicyError at the first thing in the policy's hooks that is not allowed."""
    _tree.cache_clear()
    family = policy.family
    layouts = {
        "flow": policy.flow,
        "paths": policy.shared,
        "port": policy.shared,
        "params": policy.params,
        "event": family.event,
        "result": family.result,
    }
    for hook in policy.hooks:
        names = hook.__code__.co_varnames[: hook.__code__.co_argcount]
        roles = {
            name: (role, layouts[role], role == "paths")
            for name, role in zip(names, family.arguments, strict=True)
        }
        _Function(hook, roles, (), 1, []).check()
