"""Namespaces for benchmarks of datagrams: two joined by a veth pair, or one with its loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

from transport.lab import impair, kernel, namespace, netlink
from transport.lab.bpf import Assembler
from transport.lab.plan import End, mac_of

T = TypeVar("T")

ENDS = (
    End("a", "eth0", "10.78.0.1", 24, mac_of("10.78.0.1")),
    End("b", "eth0", "10.78.0.2", 24, mac_of("10.78.0.2")),
)


NUMBERS = count()  # several wires may exist at once


@dataclass(frozen=True)
class Host:
    """One end of a wire: a namespace, and its interface to the other end."""

    name: str
    descriptor: int  # of the namespace, while the wire exists
    interface: str
    address: str
    index: int  # of the interface


@contextmanager
def wired(mtu_bytes: int) -> Iterator[tuple[Host, Host]]:
    """Two namespaces joined by a veth pair."""
    with ExitStack() as stack:
        names = [stack.enter_context(space(one)) for one in ("a", "b")]
        held = [stack.enter_context(opened(name)) for name in names]
        with_link(names[0], lambda link: netlink.add_veth(link, *ENDS, held[1]))
        indices = [
            with_link(name, partial(up, near=near, far=far, mtu_bytes=mtu_bytes))
            for name, near, far in zip(names, ENDS, reversed(ENDS), strict=True)
        ]
        near, far = (
            Host(name, descriptor, end.interface, end.address, index)
            for name, descriptor, end, index in zip(names, held, ENDS, indices, strict=True)
        )
        yield near, far


@contextmanager
def dropping(mtu_bytes: int) -> Iterator[tuple[Host, Host]]:
    """As `wired`, but the second host's interface drops all packets before its stack sees them."""
    with wired(mtu_bytes) as (near, far):
        with_link(far.name, partial(drop_all, interface=far.interface))
        yield near, far


@contextmanager
def looped(mtu_bytes: int) -> Iterator[tuple[Host, Host]]:
    """A namespace whose loopback has this MTU; both ends are there."""
    with space("lo") as name, opened(name) as descriptor:
        index = with_link(name, partial(up_loopback, mtu_bytes=mtu_bytes))
        host = Host(name, descriptor, "lo", "127.0.0.1", index)
        yield host, host


@contextmanager
def space(what: str) -> Iterator[str]:
    """The name of a new namespace."""
    name = f"weft-bench-{what}-{os.getpid()}-{next(NUMBERS)}"
    namespace.make(name)
    try:
        yield name
    finally:
        namespace.remove(name)


@contextmanager
def opened(name: str) -> Iterator[int]:
    descriptor = namespace.open_namespace(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def with_link(name: str, work: Callable[[Any], T]) -> T:
    """Calls `work` with a netlink socket of a namespace."""

    def body() -> T:
        with netlink.speaking() as link:
            return work(link)

    return namespace.inside(name, body)


def up(link: Any, *, near: End, far: End, mtu_bytes: int) -> int:
    """Sets an end up; returns its interface index."""
    netlink.set_up_end(link, near, far, mtu_bytes)
    return int(netlink.index_of(link, near.interface))


def drop_all(link: Any, *, interface: str) -> None:
    code = Assembler()
    code.leave(impair.SHOT)
    program = kernel.load_classifier("drop", code.assemble())
    try:
        netlink.add_hook(link, interface)
        netlink.attach(link, interface, program, netlink.INGRESS)
    finally:
        os.close(program)


def up_loopback(link: Any, *, mtu_bytes: int) -> int:
    index = int(netlink.index_of(link, "lo"))
    link.link("set", index=index, mtu=mtu_bytes, state="up")
    return index
