"""The peers by name: those that the flow benches drive themselves, and programs of others.

One that is missing is named in the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers import iperf3, libfabric, mptcp, tcp, ucx
from bench.peers.base import Peer, Program, Socket, Weft

__all__ = ["ALL", "ONE_STREAM", "PROGRAMS", "SOCKETS", "missing", "peer_of", "versions"]

SOCKETS: dict[str, Socket] = {peer.name: peer for peer in (Weft(), *tcp.PEERS, *mptcp.PEERS)}
PROGRAMS: dict[str, Program] = {
    peer.name: peer for peer in (*iperf3.PEERS, *libfabric.PEERS, *ucx.PEERS)
}
ALL: dict[str, Peer] = {**SOCKETS, **PROGRAMS}
# Those that a bench can open as many of as it needs.
ONE_STREAM = tuple(name for name, peer in SOCKETS.items() if peer.streams == 1)


def peer_of(name: str) -> Socket:
    """The peer of a name; weft with knobs of its own is `weft/window_policy=nscc/paths=16`."""
    return SOCKETS[name] if name in SOCKETS else Weft(name, name)


def missing(name: str) -> str | None:
    """Why a peer cannot run here and what to do about it; None when it can."""
    parts = name.split()
    peer = ALL.get(parts[-1] if parts else "")
    return peer.missing() if peer is not None else None


def versions(names: Sequence[str]) -> dict[str, str]:
    """Of the programs among them."""
    return {name: PROGRAMS[name].version() for name in names if name in PROGRAMS}
