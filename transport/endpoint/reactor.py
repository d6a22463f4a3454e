"""Wakes coroutines that wait for native work, through one event descriptor per endpoint.

The event loop watches the descriptor; no thread is used.
"""

import asyncio
import os
from collections.abc import Callable

DRAIN_BYTES = 4096


class Reactor:
    """The waiting coroutines of an endpoint, and the condition of each."""

    def __init__(self, descriptor: Callable[[], int]) -> None:
        self._open_descriptor = descriptor
        self._descriptor = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def until(self, finished: Callable[[], bool]) -> None:
        """Waits until `finished()` is true, which is called again after every native event."""
        if finished():
            return
        loop = asyncio.get_running_loop()
        self._watch(loop)
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = finished
        try:
            # Work that finished before the descriptor was watched raised no event: check again.
            if not finished():
                await future
        finally:
            self._waiting.pop(future, None)

    def poke(self) -> None:
        """Makes every waiter check its condition again; may be called from any thread."""
        loop = self._loop
        if self._waiting and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        """Stops watching the descriptor. Poke the waiters first."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed() and self._descriptor >= 0:
            loop.remove_reader(self._descriptor)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            return
        if self._waiting and self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(
                "coroutines of two event loops wait on one endpoint: use an endpoint per event loop"
            )
        self.close()
        self._waiting.clear()
        self._descriptor = self._open_descriptor()
        if self._descriptor < 0:
            raise OSError("cannot create an event descriptor: raise `ulimit -n`")
        loop.add_reader(self._descriptor, self._on_ready)
        self._loop = loop

    def _on_ready(self) -> None:
        # Drain before checking: work that finishes from here on signals the descriptor again.
        try:
            os.read(self._descriptor, DRAIN_BYTES)
        except BlockingIOError:
            return
        self._look()

    def _look(self) -> None:
        for future, finished in list(self._waiting.items()):
            if future.done():
                continue
            try:
                over = finished()
            except Exception as error:
                future.set_exception(error)
            else:
                if over:
                    future.set_result(None)
