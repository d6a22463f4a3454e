"""Runs iperf3 as a contender: TCP cubic with messages of the same size.

Its JSON output is read; the bytes are those that its receiver counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from bench.lib.placement import Placement
from bench.peers.base import Config, Program, program_row
from bench.peers.pair import free_port, run_pair

SIZE_BYTES_MAX = 1 << 20  # iperf3's own limit


@dataclass(frozen=True)
class Iperf3(Program):
    """iperf3 with a number of TCP streams."""

    streams: int = 1

    def run(self, places: Sequence[Placement], size_bytes: int, duration_s: float) -> Config:
        port = str(free_port(places[0].address))
        seconds = math.ceil(duration_s)  # iperf3 takes whole seconds
        server = [self.executable, "-s", "-1", "-p", port, "-J"]
        client = [self.executable, "-c", places[0].address, "-p", port, "-J", "-t", str(seconds)]
        client += ["-l", str(min(size_bytes, SIZE_BYTES_MAX)), "-P", str(self.streams)]
        client += ["-C", "cubic", "-i", "0.1"]
        _, sent, cost = run_pair(self.name, server, client, places, seconds)
        return self.row(parsed(sent), cost)

    @staticmethod
    def row(said: Config, cost: Config) -> Config:
        """Makes a row from iperf3's summary and its intervals."""
        try:
            received, sent = said["end"]["sum_received"], said["end"]["sum_sent"]
            rate = received["bits_per_second"] / 8
            peak = max(one["sum"]["bits_per_second"] for one in said["intervals"]) / 8
            size = said["start"]["test_start"]["blksize"]
        except (KeyError, TypeError, ValueError):
            raise click.ClickException("iperf3: its JSON lacks the end report") from None
        return program_row(
            size,
            int(received["bytes"] // size),
            rate,
            received["bytes"],
            cost,
            peak_bytes_per_s=peak,
            retransmitted_segments=sent.get("retransmits"),
        )


def parsed(text: str) -> Any:
    """Parses the JSON of iperf3 -J; ClickException with the error that it contains."""
    try:
        said = json.loads(text)
    except ValueError:
        raise click.ClickException(f"iperf3: its output is not JSON: {text[:200]!r}") from None
    if "error" in said:
        raise click.ClickException(f"iperf3: {said['error']}")
    return said


PEERS = [
    Iperf3("iperf3", "iperf3", "iperf3"),
    Iperf3("iperf3-x4", "iperf3", "iperf3", streams=4),
]
