"""Refuses Python constructs that a policy may not use, before compilation.

An accepted hook behaves the same whether it is interpreted or compiled, ends after a bounded number
of steps, reads only its records, and writes only to its state and the result. lower.py refuses
further code, whose errors only type inference can find.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType
from typing import Any, TypeVar

from congestion.api import Policy
from transport.compiler.expressions import Expressions, Role, Roles, tree
from transport.compiler.language import ALLOWED, ERRORS, INT64_MAX, READ_ONLY, REMEDIES, STEPS_MAX

NONE: frozenset[str] = frozenset()


class _Function(Expressions):
    """Checks the statements of a function: bound names, writes and loop lengths."""

    def check(self) -> None:
        if self.node.decorator_list:
            raise self.refusal(self.node, "a decorator changes the function", "remove it")
        given = self.node.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults:
            raise self.refusal(
                self.node, "only positional parameters are supported", "name each parameter"
            )
        if self.function.__code__.co_freevars:
            raise self.refusal(
                self.node, "the function closes over variables", "move it to the top level"
            )
        body = self.node.body
        for statement in body:
            self.shape(statement)
        self.block(body, {item.arg for item in given.args})

    def shape(self, statement: ast.stmt) -> None:
        """Refuses constructs that are not allowed, anywhere in the statement."""
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

    # block(), statement() and store() return the variables that are bound afterwards; None if
    # control does not continue after the statements, as after return or break.

    def block(self, statements: list[ast.stmt], bound: set[str]) -> set[str] | None:
        after: set[str] | None = set(bound)
        for statement in statements:
            if after is None:
                raise self.refusal(statement, "this statement is never reached", "remove it")
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
                if isinstance(node.op, ast.LShift | ast.RShift):
                    self.shift(node.value)
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
                        raise self.refusal(node, "a hook cannot return a value", "write to result")
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
            raise self.refusal(node, "a loop must iterate over a range", remedy)
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise self.refusal(node, "a loop must have one counter and no else", remedy)
        if node.target.id in self.roles:
            raise self.refusal(node, f"{node.target.id} is a record", "use another name")
        bounds = [self.constant(argument) for argument in call.args]
        if any(limit is None for limit in bounds) or (len(bounds) == 3 and bounds[2] == 0):
            raise self.refusal(node, "the range is not constant", remedy)
        limits = [limit for limit in bounds if limit is not None]
        if any(abs(limit) > INT64_MAX // 4 for limit in limits):
            raise self.refusal(node, "the bounds of the range are too large", remedy)
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
                            target, f"{name} is a number already", "use another name for a record"
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
        if role is not None and role.name in READ_ONLY:
            raise self.refusal(
                target, f"{role.name} is read only", "keep the value in the flow record"
            )
        if role is not None and target.attr in role.cores:
            raise self.refusal(
                target,
                f"{target.attr} is written by the core of weft",
                "keep the value in a field of yours: path=record(...)",
            )

    def enter(self, helper: FunctionType, roles: Roles) -> None:
        _Function(helper, roles, self.stack, self.steps, self.calls).check()


F = TypeVar("F", bound=_Function)


class _Reader(_Function):
    """Collects the fields that a function and its helpers read or write."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.fields: set[tuple[str, str]] = set()

    def attribute(self, node: ast.Attribute, bound: set[str], indexed: bool = False) -> None:
        super().attribute(node, bound, indexed)
        role = self.record(node.value)
        if role is not None:
            self.fields.add((role.name, node.attr))

    def enter(self, helper: FunctionType, roles: Roles) -> None:
        inner = _Reader(helper, roles, self.stack, self.steps, self.calls)
        inner.fields = self.fields
        inner.check()


def check(policy: Policy) -> None:
    """Raises PolicyError for the first construct in the policy's hooks that is not allowed."""
    tree.cache_clear()
    for function in _hooks(policy, _Function):
        function.check()


def reads(policy: Policy) -> set[tuple[str, str]]:
    """The record and the name of each field that the hooks use, helpers included."""
    found: set[tuple[str, str]] = set()
    for function in _hooks(policy, _Reader):
        function.check()
        found |= function.fields
    return found


def _hooks(policy: Policy, made: type[F]) -> Iterator[F]:
    """The hooks of a policy, each with the records that are its arguments."""
    family = policy.family
    layouts = {
        "flow": policy.flow,
        "paths": policy.shared,
        "port": policy.shared,
        "params": policy.params,
        "event": family.event,
        "result": family.result,
    }
    cores = frozenset(family.shared_head.defaults)
    for hook in filter(None, policy.hooks):
        names = hook.__code__.co_varnames[: hook.__code__.co_argcount]
        roles = {
            name: Role(role, layouts[role], role == "paths", cores if role == "paths" else NONE)
            for name, role in zip(names, policy.arguments, strict=True)
        }
        yield made(hook, roles, (), 1, [])
