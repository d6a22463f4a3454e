"""Asks an optional source of evidence in a thread, so that a device that hangs delays nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from transport.diagnose.live.sources import Found, Source

PATIENCE_S = 2.0


@dataclass
class Apart:
    """A source of evidence that may hang or fail.

    name: used in messages. patience_s: how long look() waits for the source.
    """

    name: str
    source: Source
    patience_s: float = PATIENCE_S
    _thread: threading.Thread | None = None
    _found: list[Found] = field(default_factory=list)
    _failed: bool = False

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
        """The evidence that the source found in this call, or in an earlier, late one."""
        if self._failed:
            return [], []
        if self._thread is None or not self._thread.is_alive():
            given = [dict(one) for one in processes], [dict(one) for one in before]
            self._thread = threading.Thread(
                target=self._ask, args=given, name=f"weft-{self.name}", daemon=True
            )
            self._thread.start()
            self._thread.join(self.patience_s)
        found, self._found = self._found, []
        lines = [line for _, more in found for line in more]
        if self._thread.is_alive():
            lines.append(f"{self.name} does not answer: its evidence is missing")
        return [one for seen, _ in found for one in seen], lines

    def _ask(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
        try:
            self._found.append(self.source.look(processes, before))
        # Drivers and their packages fail in many ways; diagnosis continues without them.
        except Exception as error:
            self._failed = True
            self._found.append(([], [f"{self.name} fails ({type(error).__name__}: {error})"]))
