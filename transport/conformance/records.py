"""A fast interpreter of hooks, which uses plain objects instead of NumPy records.

It has the semantics of transport.compiler.interpret at a tenth of the cost: fields are __slots__,
and a value stored in a float field becomes a float, as in a NumPy record. The compiler refuses
floats in integer fields. An integer beyond 64 bits is detected when it is stored, if integers have
their own type (see tracked.py), or else when the records are converted to NumPy records.
"""

from __future__ import annotations

from collections import namedtuple
from operator import attrgetter
from typing import Any

import numpy as np

from congestion.api import Policy, Record

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
# If a hook raises one of these exceptions, compiled code returns status 1.
RAISED = (ArithmeticError, ValueError, LookupError, AssertionError, RuntimeError)

_place = object.__setattr__


def whole(value: Any, made: type[int] = int) -> Any:
    """Converts a value for an integer field; raises TypeError or OverflowError if it is wrong."""
    if isinstance(value, float):
        raise TypeError("a float is stored in an integer field: write int(...) around it")
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError("the value does not fit an int64 field")
    return made(value)


class _Array(list[Any]):
    """An array field; `stored` converts the values that are assigned."""

    stored: Any = staticmethod(float)

    def __setitem__(self, index: Any, value: Any) -> None:
        list.__setitem__(self, index, self.stored(value))


def _float(name: str) -> property:
    """A float field: an assignment converts the value; reads use a slot, without Python code."""
    slot = f"_{name}"

    def store(self: Any, value: Any) -> None:
        _place(self, slot, float(value))

    return property(attrgetter(slot), store)


def _quick_shape(kinds: dict[str, Any]) -> type[Any]:
    """A class with the record's fields as slots; assigning an integer field runs no code."""
    floats = {name for name, kind in kinds.items() if kind == np.float64}
    slots = tuple(f"_{name}" if name in floats else name for name in kinds)
    members: dict[str, Any] = {name: _float(name) for name in floats}
    return type("Fields", (), {"__slots__": slots} | members)


def _shape(layout: Record, integer: type[int]) -> type[Any]:
    """A class with the record's fields as attributes."""
    kinds = {name: kind for name, (kind, *_) in (layout.dtype.fields or {}).items()}
    if integer is int:
        return _quick_shape(kinds)
    integers = frozenset(name for name, kind in kinds.items() if kind.base.kind == "i")

    def assign(self: Any, name: str, value: Any) -> None:
        if name in integers:
            if type(value) is not integer or not INT64_MIN <= value <= INT64_MAX:
                value = whole(value, integer)
        else:
            value = float(value)
        _place(self, name, value)

    return type("Fields", (), {"__slots__": tuple(kinds), "__setattr__": assign})


class Shape:
    """Makes, fills and reads objects of one record layout; `integer` is the type for integers."""

    def __init__(self, layout: Record, integer: type[int] = int) -> None:
        self.layout = layout
        self.names = tuple(layout.dtype.names or ())
        self.integer = integer
        self._class = _shape(layout, integer)
        self._all = attrgetter(*self.names) if len(self.names) > 1 else None
        kinds = (layout.dtype[name] for name in self.names)
        self._plain = self._all is not None and all(not kind.shape for kind in kinds)
        self._integers = type("Integers", (_Array,), {"stored": staticmethod(self._whole)})

    def _whole(self, value: Any) -> Any:
        return whole(value, self.integer)

    def take(self, fields: Any, one: np.void) -> None:
        """Copies the values of a NumPy record into the object `fields`."""
        for name, value in zip(self.names, one.tolist(), strict=True):
            if isinstance(value, np.ndarray):
                items = [self.integer(i) if type(i) is int else i for i in value.tolist()]
                value = (self._integers if type(items[0]) is self.integer else _Array)(items)
            elif type(value) is int:
                value = self.integer(value)
            _place(fields, name, value)

    def made(self, records: np.ndarray[Any, Any]) -> list[Any]:
        several = [self._class() for _ in range(len(records))]
        for fields, one in zip(several, records, strict=True):
            self.take(fields, one)
        return several

    def values(self, fields: Any) -> tuple[Any, ...]:
        if self._plain and self._all is not None:
            return self._all(fields)
        return tuple(
            tuple(value) if isinstance(value, list) else value
            for value in [getattr(fields, name) for name in self.names]
        )

    def packed(self, several: list[Any]) -> np.ndarray[Any, Any]:
        """The objects as an array of NumPy records."""
        return np.array([self.values(fields) for fields in several], self.layout.dtype)


def _event_class(layout: Record) -> Any:
    return namedtuple("Event", layout.dtype.names or ())


class Interpreter:
    """Interpreted hooks of one policy with their own records; `restart` resets the records."""

    def __init__(self, policy: Policy, hooks: Any = None, integer: type[int] = int) -> None:
        self.policy = policy
        family = policy.family
        self.flow_shape = Shape(policy.flow, integer)
        self.shared_shape = Shape(policy.shared, integer)
        self.result_shape = Shape(family.result, integer)
        self.made_event: Any = _event_class(family.event)._make
        self.hooks = list(policy.hooks if hooks is None else hooks)
        self.params: Any = 0
        if policy.params.size_bytes:
            self.params = Shape(policy.params, integer).made(policy.params.filled())[0]
        self.result = self.result_shape.made(family.result.zeros())[0]
        self.flow: Any = 0
        self.shared: list[Any] = []
        self.raised: BaseException | None = None  # the exception of the first failed hook
        self._several = policy.shares == "path"
        self._sharing = bool(policy.shares)
        self.restart(1)

    def restart(self, shared: int) -> None:
        """Sets all records to zero, as before on_start. `shared`: how many of them flows share."""
        policy = self.policy
        if policy.flow.size_bytes:
            self.flow = self.flow_shape.made(policy.flow.zeros())[0]
        if policy.shared.size_bytes:
            self.shared = self.shared_shape.made(policy.shared.zeros(shared))
        elif policy.shares:
            self.shared = [0] * shared

    def call(self, hook: int, row: tuple[Any, ...], preset: tuple[Any, ...]) -> int:
        """Calls a hook; returns 1 if it raises, else 0. The answer is in `result`."""
        result, event = self.result, self.made_event(row)
        for name, value in zip(self.result_shape.names, preset, strict=True):
            _place(result, name, value)
        try:
            if self._several:
                self.hooks[hook](self.flow, self.shared, self.params, event, result)
            elif self._sharing:
                self.hooks[hook](self.flow, self.shared[0], self.params, event, result)
            else:
                self.hooks[hook](self.flow, self.params, event, result)
        except RAISED as error:
            self.raised = self.raised or error
            return 1
        return 0

    def answer(self) -> tuple[Any, ...]:
        return self.result_shape.values(self.result)

    def set_heads(self, heads: list[tuple[int, ...]]) -> None:
        """Sets the fields of the path records that the core writes before each call."""
        for path, (usable, inflight_bytes, rtt_ns) in zip(self.shared, heads, strict=True):
            _place(path, "usable", usable)
            _place(path, "inflight_bytes", inflight_bytes)
            _place(path, "rtt_ns", rtt_ns)

    def state(self) -> bytes:
        try:
            return self._state()
        except OverflowError:
            return b"an integer has left 64 bits"

    def _state(self) -> bytes:
        flow = self.flow_shape.packed([self.flow]).tobytes() if self.policy.flow.size_bytes else b""
        if not self.policy.shared.size_bytes:
            return flow
        return flow + self.shared_shape.packed(self.shared).tobytes()

    def take_state(self, flow: np.ndarray[Any, Any], shared: np.ndarray[Any, Any]) -> None:
        """Copies the records of a compiled policy, to continue from its state."""
        if self.policy.flow.size_bytes:
            self.flow_shape.take(self.flow, flow[0])
        if self.policy.shared.size_bytes:
            for fields, one in zip(self.shared, shared, strict=True):
                self.shared_shape.take(fields, one)
