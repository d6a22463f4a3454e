"""Base classes that make objects with close() usable in `with` and `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closes(ABC):
    """A context manager that calls close() on exit."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Closes the object; may be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


class AsyncCloses(Closes):
    """Like Closes, also for `async with`; close() must not block on the network."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.close()
