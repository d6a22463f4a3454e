"""Runs ucx_perftest as a contender: tag matching over UCX's tcp transport; reads its CSV.

Shared memory is off, because it would bypass the network.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

import click

from bench.lib.placement import Placement
from bench.peers.base import Config, Program, first_version, program_row
from bench.peers.pair import free_port, run_pair

RATE_GUESS = 1e9  # assumed bytes per second, to choose the number of iterations
ITERATIONS_MIN, ITERATIONS_MAX = 20, 1_000_000
MIB = 1 << 20  # bytes of what ucx_perftest calls a MB
COLUMNS = ("iterations", "percentile", "avg_lat", "overall_lat", "avg_bw", "overall_bw")


@dataclass(frozen=True)
class Perftest(Program):
    """ucx_perftest -t tag_bw: one sender and one receiver."""

    def version(self) -> str:
        return first_version(["ucx_info", "-v"])

    def run(self, places: Sequence[Placement], size_bytes: int, duration_s: float) -> Config:
        count = min(max(int(RATE_GUESS * duration_s / size_bytes), ITERATIONS_MIN), ITERATIONS_MAX)
        port = str(free_port(places[0].address))
        base = [self.executable, "-f", "-v", "-t", "tag_bw", "-p", port, "-s", str(size_bytes)]
        base += ["-n", str(count), "-w", str(max(count // 10, 1))]
        environment = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": places[0].interfaces.split(",")[0]}
        _, sent, cost = run_pair(
            self.name, base, [*base, places[0].address], places, duration_s, environment
        )
        return self.row(sent, size_bytes, cost)

    def row(self, text: str, size_bytes: int, cost: Config) -> Config:
        """Parses the last line of the CSV."""
        try:
            fields = [
                one for one in csv.reader(text.splitlines()) if one and one[0].strip().isdigit()
            ][-1]
            said = dict(zip(COLUMNS, map(float, fields), strict=False))
            rate, total = said["overall_bw"] * MIB, said["iterations"] * size_bytes
        except (IndexError, ValueError, KeyError):
            raise click.ClickException(
                f"{self.name}: no CSV in the output: {text[-200:]!r}"
            ) from None
        return program_row(size_bytes, int(said["iterations"]), rate, total, cost)


PEERS = [Perftest("ucx_perftest", "ucx_perftest", "ucx-utils")]
