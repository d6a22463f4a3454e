"""An integer type that detects when interpreted and compiled arithmetic may differ.

They may differ if a result exceeds 64 bits, or if an integer that is not exact as a float is mixed
with floats. Hooks run as Python on these integers; no compiled library is called.
"""

from __future__ import annotations

import types
from typing import Any

from congestion.api import Policy
from transport.compiler import source

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_EXACT = 1 << 53


class Tally:
    """`left`: whether a value left the range in which interpreted and compiled results agree."""

    left = False


def _kept(value: Any) -> Any:
    if type(value) is int:
        if not _LEAST <= value <= _MOST:
            Tally.left = True
        return Whole(value)
    return value


def _meets(one: int, other: Any) -> None:
    if isinstance(other, float) and not -_EXACT <= one <= _EXACT:
        Tally.left = True


def _operation(name: str) -> Any:
    plain = getattr(int, name)

    def run(self: Any, *others: Any) -> Any:
        for other in others:
            _meets(self, other)
        return _kept(plain(self, *others))

    return run


def _division(name: str) -> Any:
    plain = getattr(int, name)

    def run(self: Any, other: Any) -> Any:
        for value in (self, other):
            if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
                Tally.left = True
        return plain(self, other)

    return run


_CLOSED = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod"),
    *("neg", "pos", "abs", "lshift", "rlshift", "rshift", "rrshift", "and", "rand", "or", "ror"),
    *("xor", "rxor", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
)


def _members() -> dict[str, Any]:
    members = {f"__{name}__": _operation(f"__{name}__") for name in _CLOSED}
    members |= {f"__{name}__": _division(f"__{name}__") for name in ("truediv", "rtruediv")}
    members["__hash__"] = int.__hash__
    members["__slots__"] = ()
    return members


Whole: Any = type("Whole", (int,), _members())


def _int(value: Any) -> Any:
    return _kept(int(value))


def _float(value: Any) -> float:
    if isinstance(value, int):
        _meets(value, 0.0)
    return float(value)


def tracked_hooks(policy: Policy) -> list[Any]:
    """Makes copies of the hooks in which int() and float() also check their values."""
    made: dict[Any, Any] = {}

    def rebuilt(function: Any) -> Any:
        if function not in made:
            namespace = dict(function.__globals__)
            made[function] = types.FunctionType(
                function.__code__, namespace, function.__name__, function.__defaults__
            )
            for name in source.global_names(function):
                if isinstance(namespace.get(name), types.FunctionType):
                    namespace[name] = rebuilt(namespace[name])
            namespace["int"], namespace["float"] = _int, _float
        return made[function]

    return [None if hook is None else rebuilt(hook) for hook in policy.hooks]


def tracked_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(Whole(value) if type(value) is int else value for value in row)
