"""Multipath TCP (MPTCP) as a contender, if this kernel has it.

The machine's configuration determines the subflows.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from bench.lib.channels import IPPROTO_MPTCP
from bench.peers.base import Socket


@dataclass(frozen=True)
class Mptcp(Socket):
    """Multipath TCP with the kernel's default congestion control."""

    name: str = "mptcp"
    kind: str = "mptcp"

    def missing(self) -> str | None:
        try:
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
        except OSError as error:
            reason = (error.strerror or "refused").lower()
            return f"this kernel has no MPTCP ({reason}): CONFIG_MPTCP, sysctl net.mptcp.enabled=1"
        return None


PEERS = [Mptcp()]
