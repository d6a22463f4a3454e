"""Warns once if a dial gets no answer, and says what the usual causes are."""

from __future__ import annotations

import ipaddress
import struct
import sys
import time
from collections.abc import Callable

from transport import native

WARN_S = 2.0  # a reachable peer answers sooner
# Where a listener's handle has its address (native/control/handle.cc): family, port, address.
ADDRESS_AT, ADDRESS = 28, struct.Struct("<HH16s")


def place_of(handle: bytes) -> str:
    """The address and port in a listener's handle, or words for it if they cannot be read."""
    family, port, address = ADDRESS.unpack_from(handle, ADDRESS_AT)
    if family not in (4, 6):
        return "the handle's listener"
    return f"{ipaddress.ip_address(address[:4] if family == 4 else address)} port {port}"


class SlowDial:
    """Watches a dial. `name`: the peer; `device`: what it is dialled from; `loud`: may warn."""

    def __init__(self, name: str, device: native.Device, dial: native.Dial, loud: bool) -> None:
        self._name, self._device, self._dial = name, device, dial
        self._warn_at = time.monotonic() + WARN_S if loud else None

    def watched(self, finished: Callable[[], bool]) -> Callable[[], bool]:
        """`finished`, which warns when it is called late and is still false."""

        def check() -> bool:
            done = finished()
            if not done and self._warn_at is not None and time.monotonic() >= self._warn_at:
                self.warn()
            return done

        return check

    def warn(self) -> None:
        """Writes the line as native code writes its own, if it was not written and is needed."""
        if self._warn_at is None:
            return
        self._warn_at = None
        if self._dial.error():  # the engine's log has the cause
            return
        sys.stderr.write(
            f"weft warning: no answer from {self._name} for {WARN_S:g} s, dialled from "
            f"{self._device.name} ({self._device.address}): a firewall drops TCP to this port, the "
            "address is wrong or leads over another interface (WEFT_INTERFACES), or the host is "
            "down; still trying (weft doctor --serve and --peer test the way)\n"
        )
        sys.stderr.flush()
