"""Questions about network addresses that the kernel of this host answers."""

from __future__ import annotations

import socket


def is_own(address: str) -> bool:
    """Whether a numeric address is one of this host; False for anything else, names included."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, kind, _, _, place = found[0]
        with socket.socket(family, kind) as one:
            one.bind(place)
    except (OSError, ValueError):  # ValueError: a text that no address can be
        return False
    return True
