"""Finds contenders by name: sockets that flow benchmarks use, and foreign programs.

Results list the contenders that this machine lacks.
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
# Contenders with one stream per flow, so that a benchmark can open any number of flows.
ONE_STREAM = tuple(name for name, peer in SOCKETS.items() if peer.streams == 1)


def peer_of(name: str) -> Socket:
    """The contender of a name; `weft/window_policy=nscc/paths=16` is weft with these knobs."""
    return SOCKETS[name] if name in SOCKETS else Weft(name, name)


def missing(name: str) -> str | None:
    """The reason why a contender cannot run here, with the remedy; None if it can."""
    parts = name.split()
    peer = ALL.get(parts[-1] if parts else "")
    return peer.missing() if peer is not None else None


def versions(names: Sequence[str]) -> dict[str, str]:
    """The versions of the foreign programs among the contenders."""
    return {name: PROGRAMS[name].version() for name in names if name in PROGRAMS}
