"""What has a close() can stand in a `with`, and in an `async with`.

Says when close() is called, never what it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closes(ABC):
    """Closed when the `with` is left, however it is left."""

    @abstractmethod
    def close(self) -> None:
        """Ends it; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


class AsyncCloses(Closes):
    """As Closes, for `async with` too: close() never waits for the network."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.close()
