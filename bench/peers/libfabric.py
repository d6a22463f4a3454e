"""Runs programs of libfabric as contenders, over its tcp provider, and reads their tables.

A ping-pong has one message in flight at a time. fabtests must be installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import click

from bench.lib.placement import Placement
from bench.peers.base import Config, Program, first_version, program_row
from bench.peers.pair import free_port, run_pair

RATE_GUESS = 2e8  # assumed bytes per second, to choose the number of iterations
ITERATIONS_MIN, ITERATIONS_MAX = 10, 100_000
SCALES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _number(text: str) -> int:
    match = re.fullmatch(r"=?([0-9]+)([kmg]?)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * SCALES[match[2]]


@dataclass(frozen=True)
class Fabric(Program):
    """A program of libfabric or fabtests; both print the same table."""

    both_ways: bool = False  # True: the program's total counts both directions of a ping-pong

    def missing(self) -> str | None:
        if super().missing() is None or self.package:
            return super().missing()
        return f"no {self.executable} here: build fabtests from libfabric's source"

    def version(self) -> str:
        return first_version(["fi_info", "--version"])

    def run(self, places: Sequence[Placement], size_bytes: int, duration_s: float) -> Config:
        count = int(RATE_GUESS * duration_s / size_bytes)
        count = min(max(count, ITERATIONS_MIN), ITERATIONS_MAX)
        port = str(free_port(places[0].address))
        base = [self.executable, "-p", "tcp", "-S", str(size_bytes), "-I", str(count)]
        base += ["-e", "rdm"] if self.both_ways else []
        client = [*base, "-P", port, places[0].address]
        # Without this variable, the provider would choose an interface itself.
        environment = {"FI_TCP_IFACE": places[0].interfaces.split("+")[0].split(",")[0]}
        _, sent, cost = run_pair(
            self.name, [*base, "-B", port], client, places, duration_s, environment
        )
        return self.row(sent, size_bytes, cost)

    def row(self, text: str, size_bytes: int, cost: Config) -> Config:
        """Parses the last line of: bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec."""
        lines = [line.split() for line in text.splitlines() if line[:1].isdigit()]
        try:
            fields = lines[-1]
            messages = _number(fields[1])
            seconds = float(fields[-4].removesuffix("s"))
            total = size_bytes * messages * (2 if self.both_ways else 1)
            rate = total / seconds
        except (IndexError, ValueError, ZeroDivisionError):
            raise click.ClickException(
                f"{self.name}: no table in the output: {text[-200:]!r}"
            ) from None
        return program_row(size_bytes, messages, rate, total, cost)


PEERS = [
    Fabric("fi_pingpong", "fi_pingpong", "libfabric-bin", both_ways=True),
    Fabric("fi_rdm_tagged_bw", "fi_rdm_tagged_bw", ""),
]
