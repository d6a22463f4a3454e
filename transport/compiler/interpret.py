"""Runs hooks as plain Python over numpy records; compiled code must behave the same.

It needs no numba, so a policy can be stepped through in a debugger.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congestion.api import MAX_PATHS, Policy, Record

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class _Field:
    """An array field of a record; it checks bounds, types and write access."""

    __slots__ = ("_data", "_integer", "_writable")

    def __init__(self, data: np.ndarray[Any, Any], writable: bool) -> None:
        self._data, self._writable = data, writable
        self._integer = data.dtype.kind == "i"

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> int | float:
        value: int | float = self._data[index].item()
        return value

    def __setitem__(self, index: int, value: int | float) -> None:
        if not self._writable:
            raise AttributeError("this array field is read only")
        self._data[index] = _stored(value, self._integer)


def _stored(value: int | float, integer: bool) -> int | float:
    if not integer:
        return float(value)
    if isinstance(value, float):
        raise TypeError("a float is stored in an integer field: write int(...) around it")
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise OverflowError("the value does not fit an int64 field")
    return int(value)


class View:
    """A record whose fields are attributes with plain numbers."""

    __slots__ = ("_layout", "_one", "_writable")

    def __init__(self, one: Any, layout: Record, writable: bool) -> None:
        object.__setattr__(self, "_one", one)
        object.__setattr__(self, "_layout", layout)
        object.__setattr__(self, "_writable", writable)

    def __getattr__(self, name: str) -> Any:
        if name not in self._layout.defaults:
            raise AttributeError(f"no field {name!r}")
        value = self._one[name]
        return _Field(value, self._writable) if isinstance(value, np.ndarray) else value.item()

    def __setattr__(self, name: str, value: int | float) -> None:
        if not self._writable:
            raise AttributeError(f"the field {name} is read only")
        if name not in self._layout.defaults:
            raise AttributeError(f"no field {name!r}")
        self._one[name] = _stored(value, self._layout.dtype[name].kind == "i")


class Views:
    """The path records of a flow or peer."""

    def __init__(self, records: Any, layout: Record) -> None:
        self._records, self._layout = records, layout

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> View:
        return View(self._records[index], self._layout, True)


class Interpreted:
    """A policy's Python hooks with the interface of a compiled library."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.family = policy.family
        self.name = policy.name
        self._hooks = dict(zip(policy.family.hooks, policy.hooks, strict=True))

    @property
    def params_default(self) -> bytes:
        return self.policy.params.filled().tobytes() if self.policy.params.size_bytes else b""

    def call(
        self, hook: str, *, flow: Any, shared: Any, params: Any, event: Any, result: Any
    ) -> int:
        """Calls a hook; returns 1 if it raises, else 0, like the status of a compiled hook."""
        try:
            self.run(hook, flow=flow, shared=shared, params=params, event=event, result=result)
        except (ArithmeticError, ValueError, LookupError, AssertionError, RuntimeError):
            return 1
        return 0

    def run(
        self, hook: str, *, flow: Any, shared: Any, params: Any, event: Any, result: Any
    ) -> None:
        """Calls a hook and does not catch its exceptions, so that a debugger sees them."""
        policy, family = self.policy, self.family
        if shared is not None and len(shared) > MAX_PATHS:
            raise ValueError(f"{len(shared)} paths: give at most {MAX_PATHS}")

        def one(records: Any, layout: Record, writable: bool) -> Any:
            return View(records[0], layout, writable) if layout.size_bytes else 0

        middle: list[Any] = []
        if policy.shares == "path":
            middle = [Views(shared, policy.shared)]
        elif policy.shares:
            middle = [one(shared, policy.shared, True)]
        self._hooks[hook](
            one(flow, policy.flow, True),
            *middle,
            one(params, policy.params, False),
            one(event, family.event, False),
            one(result, family.result, True),
        )
