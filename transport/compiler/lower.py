"""Translates a policy's hooks to LLVM IR with numba, without any use of the Python runtime.

numba is imported only here, when first needed.

Division by zero, an index out of range, a failed assert, and int() of a nan or an infinity raise an
exception in Python; a compiled hook returns 1 instead. Integer overflow wraps in compiled code; in
interpreted code the number grows beyond 64 bits, and storing it in a record raises an exception.
"""

from __future__ import annotations

import functools
import math
import types as python_types
from collections.abc import Callable
from typing import Any

from congestion.api import Policy, Record
from transport.compiler import source
from transport.compiler.errors import INSTALL, PolicyError, ToolMissingError
from transport.ground.interrupts import interrupts_held

OPTIONS = {
    "boundscheck": True,
    "error_model": "python",
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
NUMBA_VERSIONS = ((0, 68),)  # numba internals are used; tested with 0.68.0 and 0.68.1


def _checked_int(x: Any) -> Any:
    if not (-9.2233720368547748e18 <= x <= 9.2233720368547748e18):
        raise ValueError("int of nan or infinity")
    return int(x)


def _checked_sqrt(x: Any) -> Any:
    if x < 0.0:
        raise ValueError("sqrt of a negative number")
    return math.sqrt(x)


def _checked_log(x: Any) -> Any:
    if x <= 0.0:
        raise ValueError("log of a number that is not positive")
    return math.log(x)


def _checked_exp(x: Any) -> Any:
    y = math.exp(x)
    if y == math.inf and x != math.inf:
        raise OverflowError("exp of a number too large")
    return y


@functools.cache
def _numba() -> Any:
    try:
        import numba
    except ImportError as error:
        reason = f"numba cannot be imported ({error})"
        raise ToolMissingError("policy compiler", reason, INSTALL) from error
    if tuple(numba.version_info[:2]) not in NUMBA_VERSIONS:
        reason = f"numba {numba.__version__} is not supported"
        raise ToolMissingError("policy compiler", reason, INSTALL)
    return numba


@functools.cache
def _checked() -> dict[str, Any]:
    """Replacements for global functions that a hook uses, with the errors that Python raises."""
    jit = _numba().njit(**OPTIONS)
    checked_math = python_types.ModuleType("math")
    for name in ("pi", "e", "tau", "inf", "fabs", "isnan", "isinf", "isfinite"):
        setattr(checked_math, name, getattr(math, name))
    for name, function in (("sqrt", _checked_sqrt), ("log", _checked_log), ("exp", _checked_exp)):
        setattr(checked_math, name, jit(function))
    return {"int": jit(_checked_int), "math": checked_math}


class _Lowering:
    """The numba dispatchers of one policy; each function that it uses is compiled once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.functions: dict[Any, Any] = {}

    def native(self, function: Any) -> Any:
        if function in self.functions:
            return self.functions[function]
        namespace: dict[str, Any] = {"__name__": function.__module__}
        for name in source.global_names(function):
            value = function.__globals__.get(name)
            if isinstance(value, python_types.FunctionType):
                namespace[name] = self.native(value)
            elif value is math:
                namespace[name] = _checked()["math"]
            elif name == "int":
                namespace[name] = _checked()["int"]
            elif value is not None:
                namespace[name] = value
        bare = python_types.FunctionType(function.__code__, namespace, function.__name__)
        self.functions[function] = _numba().njit(**OPTIONS)(bare)
        return self.functions[function]

    def adapter(self, hook: Any) -> Callable[..., None]:
        """Gives a hook the uniform C signature over record pointers."""
        policy = self.policy
        first = {
            "flow": "carray(flow, 1)[0]" if policy.flow.size_bytes else "0",
            "paths": "carray(shared, count)" if policy.shared.size_bytes else "empty",
            "port": "carray(shared, 1)[0]" if policy.shared.size_bytes else "0",
            "params": "carray(params, 1)[0]" if policy.params.size_bytes else "0",
            "event": "carray(event, 1)[0]",
            "result": "carray(result, 1)[0]",
        }
        arguments = ", ".join(first[name] for name in policy.arguments)
        text = f"def call(flow, shared, count, params, event, result):\n    body({arguments})\n"
        namespace = {"carray": _numba().carray, "body": self.native(hook), "empty": ()}
        exec(text, namespace)
        call: Callable[..., None] = namespace["call"]
        return call

    def signature(self) -> tuple[Any, ...]:
        numba = _numba()

        def pointer(layout: Record) -> Any:
            if not layout.size_bytes:
                return numba.types.CPointer(numba.types.uint8)
            return numba.types.CPointer(numba.from_dtype(layout.dtype))

        policy, family = self.policy, self.policy.family
        return (
            pointer(policy.flow),
            pointer(policy.shared),
            numba.types.int64,
            pointer(policy.params),
            pointer(family.event),
            pointer(family.result),
        )

    def check_stores(self) -> None:
        """Refuses to store a float in an integer field, which would silently drop its fraction."""
        numba = _numba()
        for function, dispatcher in self.functions.items():
            for overload in dispatcher.overloads.values():
                for statement, signature in overload.type_annotation.calltypes.items():
                    if not isinstance(statement, numba.core.ir.SetAttr):
                        continue
                    layout = signature.args[0]
                    written = overload.type_annotation.typemap[statement.value.name]
                    if isinstance(
                        layout.typeof(statement.attr), numba.types.Integer
                    ) and isinstance(written, numba.types.Float):
                        raise PolicyError(
                            function.__code__.co_filename,
                            statement.loc.line,
                            f"a float is stored in the integer field {statement.attr}",
                            "write int(...) around it, or declare the field as float",
                        )


def _typing_error(policy: Policy, hook: Any, error: Exception) -> PolicyError:
    line = getattr(getattr(error, "loc", None), "line", None) or hook.__code__.co_firstlineno
    words = [row.strip() for row in str(error).splitlines() if row.strip()]
    file = hook.__code__.co_filename
    places = [row for row in words if file in row and "(" in row]
    for place in reversed(places):
        digits = place.rsplit("(", 1)[1].split(")")[0]
        if digits.isdigit():
            line = int(digits)
            break
    reason = next(
        (
            row
            for row in words
            if "No implementation" in row
            or "Cannot unify" in row
            or "Unknown attribute" in row
            or "Invalid use" in row
        ),
        words[0],
    )
    return PolicyError(
        file,
        line,
        f"the types of {policy.name} cannot be inferred: {reason}",
        "use int64 and float64 values only",
    )


@interrupts_held()
def lower(policy: Policy) -> list[tuple[str, str] | None]:
    """For each hook: the IR of the module that contains it, and the name of its function.

    None: the policy lacks the hook.
    """
    numba = _numba()
    import numba.core.compiler as numba_compiler
    from numba.core.registry import cpu_target

    internals: Any = numba_compiler  # Any, because numba's type annotations are incomplete

    lowering = _Lowering(policy)
    done: dict[Any, tuple[str, str]] = {}
    for hook in policy.hooks:
        if hook is None or hook in done:
            continue
        flags = internals.Flags()
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.nrt = True  # needed to type carray; the optimizer removes the code that nrt adds
        flags.error_model = "python"
        flags.boundscheck = True
        try:
            compiled = internals.compile_extra(
                cpu_target.typing_context,
                cpu_target.target_context,
                lowering.adapter(hook),
                lowering.signature(),
                numba.types.void,
                flags,
                {},
            )
        except numba.core.errors.NumbaError as error:
            raise _typing_error(policy, hook, error) from error
        done[hook] = (compiled.library.get_llvm_str(), compiled.fndesc.llvm_func_name)
    lowering.check_stores()
    return [None if hook is None else done[hook] for hook in policy.hooks]
