"""Tests the network between two hosts with weft itself, for `weft doctor --serve` and `--peer`."""

from transport.host.finding import BROKEN, Finding, verdict
from transport.host.two_hosts.near import examine
from transport.host.two_hosts.serve import Server

__all__ = ["BROKEN", "Finding", "Server", "examine", "verdict"]
