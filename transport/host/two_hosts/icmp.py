"""Reads which ICMP errors (RFC 792, RFC 4443) came for the datagrams of a UDP socket."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

# Options and the layout of struct sock_extended_err: Linux, include/uapi/linux/errqueue.h.
RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
MSG_ERRQUEUE, EXTENDED_ERR_BYTES = 0x2000, 16


def hears_errors(one: socket.socket) -> None:
    """Makes the kernel keep the errors of this socket. OSError if it cannot."""
    one.setsockopt(*RECVERR[socket.AddressFamily(one.family)], 1)


def icmp_errors(one: socket.socket) -> Iterator[tuple[int, str]]:
    """The port that each ICMP error is about, and the address that sent it."""
    while True:
        try:
            _, control, _, about = one.recvmsg(1, 512, MSG_ERRQUEUE)
        except OSError:
            return
        yield int(about[1]) if about else 0, next((_offender(data) for _, _, data in control), "")


def _offender(data: bytes) -> str:
    """The address after a struct sock_extended_err; "" if it has none."""
    place = data[EXTENDED_ERR_BYTES:]
    family = int.from_bytes(place[:2], sys.byteorder) if len(place) >= 8 else 0
    with suppress(ValueError, OSError):
        if family == socket.AF_INET:
            return socket.inet_ntop(family, place[4:8])
        if family == socket.AF_INET6:
            return socket.inet_ntop(family, place[8:24])
    return ""
