"""Calls compiled hooks by their addresses, on records that lie between guard bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.witness import Witness

GUARD_BYTES = 64
GUARD = 0xA5


class Guarded:
    """Records between guard bytes, which reveal writes outside of the records."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        size = dtype.itemsize * count
        padded = (size + 7) // 8 * 8
        self._memory = np.full(padded + 2 * GUARD_BYTES + 8, GUARD, np.uint8)
        start = -int(self._memory.ctypes.data) % 8 + GUARD_BYTES
        self._start, self._end = start, start + size
        self.address = int(self._memory.ctypes.data) + start
        self.records: np.ndarray[Any, Any] = np.zeros(count, dtype)
        if size:
            self.records = self._memory[start : start + size].view(dtype)
        self._before = bytes([GUARD]) * start
        self._after = bytes([GUARD]) * (len(self._memory) - self._end)
        self.clear()

    def clear(self) -> None:
        self._memory[self._start : self._end] = 0

    def intact(self) -> bool:
        before, after = self._memory[: self._start], self._memory[self._end :]
        return before.tobytes() == self._before and after.tobytes() == self._after


class NativeSide:
    """One compiled policy with its own records; `restart` resets them."""

    def __init__(self, policy: Policy, library: Library) -> None:
        self.policy = policy
        self._library = library  # a reference, so that the code stays loaded
        self._hooks = [
            library.hook(name) if at in policy.hook_numbers else None
            for at, name in enumerate(policy.family.hooks)
        ]
        self.flow = Guarded(policy.flow.dtype, 1)
        self.params = Guarded(policy.params.dtype, 1)
        if policy.params.size_bytes:
            self.params.records[:] = policy.params.filled()
        self._params_before = self.params.records.tobytes()
        self.damage = ""  # describes a write into records that belong to the caller
        self._count = 0
        self.shared = Guarded(policy.shared.dtype, 0)
        self.restart(1)

    def restart(self, shared: int) -> None:
        count = shared if self.policy.shares else 0
        if count != self._count:
            self.shared = Guarded(self.policy.shared.dtype, count)
            self._count = count
        self.flow.clear()
        self.shared.clear()

    def call(self, hook: int, event_at: int, result_at: int) -> int:
        """Calls a hook; returns its status."""
        bare, given = self.bound()
        return int(bare[hook](*given, event_at, result_at))

    def witnessed(self, hook: int, event: Guarded, result: Guarded) -> int:
        """Calls a hook; on the first failure, stores the exception that interpreted code raises."""
        before = [side.records.copy() for side in (self.flow, self.shared, result)]
        status = self.call(hook, event.address, result.address)
        self._library.failures += status != 0
        if status and not self._library.raised:
            witness = Witness(self.policy)
            flow, shared, answer = before
            witness.call(
                self.policy.family.hooks[hook],
                flow=flow,
                shared=shared if self.policy.shares else None,
                params=self.params.records,
                event=event.records,
                result=answer,
            )
            self._library.raised = witness.first
        return status

    def note_unfinite(self, hook: int, *answer: float) -> None:
        """Stores a non-finite answer as the library's first failure."""
        self._library.failures += 1
        if not self._library.raised:
            name = self.policy.family.hooks[hook]
            self._library.raised = f"{name} answers {answer[0]} and {answer[1]}: not finite"

    def bound(self) -> tuple[list[Any], tuple[int, ...]]:
        """Addresses of the hooks and records; a restart with more or fewer paths changes them."""
        given = (self.flow.address, self.shared.address, self._count, self.params.address)
        return self._hooks, given

    def set_heads(self, heads: np.ndarray[Any, Any]) -> None:
        words = heads.view(np.int64).reshape(len(heads), -1)
        self.shared.records.view(np.int64).reshape(len(heads), -1)[:, : words.shape[1]] = words

    def state(self) -> bytes:
        return self.flow.records.tobytes() + self.shared.records.tobytes()

    def finite(self) -> bool:
        """Whether all floats in the records are finite."""
        return all(
            bool(np.isfinite(records[name]).all())
            for records in (self.flow.records, self.shared.records)
            for name, (kind, *_) in (records.dtype.fields or {}).items()
            if kind.base.kind == "f"
        )

    def complaint(self) -> str:
        """Describes a write outside of the writable records; "" if there was none."""
        if self.damage:
            return self.damage
        for what in ("flow", "shared", "params"):
            if not getattr(self, what).intact():
                return f"bytes beside the {what} record were written"
        if self.params.records.tobytes() != self._params_before:
            return "the parameters were written"
        return ""
