"""Whether the addresses that two hosts offer can lead to each other at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from contextlib import suppress

from transport import Connection, Endpoint
from transport.ground.addresses import is_own
from transport.host.two_hosts.facts import DeviceFact
from transport.host.two_hosts.talk import host_of
from transport.host.uses import is_loopback, setting_of
from transport.telemetry.page import PageError, read_page


def leads_to_this_host(host: str) -> bool:
    """Whether a name or an address is one of this host; so is one that cannot be resolved."""
    with suppress(OSError, UnicodeError):
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)}
        return any(map(is_own, found))
    return True  # the dial says what is wrong with it


def only_loopback(addresses: Collection[str]) -> bool:
    """Whether there are addresses, and another host reaches none of them."""
    return bool(addresses) and all(map(is_loopback, addresses))


def offered(endpoint: Endpoint) -> set[str]:
    """The addresses of data paths that the other end offered; empty if they are unknown."""
    page = endpoint.telemetry_page
    with suppress(PageError):
        if page is not None:
            return {str(peer.state["address"]) for peer in read_page(page).peers}
    return set()


def stranded(connection: Connection, near: DeviceFact, far: DeviceFact) -> bool:
    """Whether one of a pair of devices has a loopback address, and the ends are two hosts."""
    return any(map(is_loopback, (near.address, far.address))) and not is_own(host_of(connection))


def own_text(addresses: Collection[str]) -> str:
    """This host's addresses and the setting that chose them, in words."""
    setting = setting_of(os.environ)
    return ", ".join(addresses) + (f" ({setting})" if setting.variable else "")
