"""Kernel TCP beside weft: cubic and bbr, one stream and four.

The congestion control is chosen for each socket; the machine's default stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.peers.base import Socket

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
CONTROLS = ("cubic", "bbr")
STREAMS = 4


@dataclass(frozen=True)
class Tcp(Socket):
    """TCP with one congestion control."""

    def missing(self) -> str | None:
        control = self.kind.partition("-")[2]
        try:
            known = AVAILABLE.read_text().split()
        except OSError:
            return None
        if control in known:
            return None
        return f"this kernel has no {control} loaded: modprobe tcp_{control}"


PEERS = [
    Tcp(f"tcp-{control}{suffix}", f"tcp-{control}", streams)
    for control in CONTROLS
    for suffix, streams in (("", 1), (f"-x{STREAMS}", STREAMS))
]
