"""Measures the cost of a segment in the protocol core, without sockets and payload copies.

A native loop runs the core in one call, on one pinned thread.
"""

from __future__ import annotations

import os

import click

from bench.lib import loops
from bench.lib.common import Config, document, emit, interruptible, json_option, median, rounds

BUDGET_NS = 150
POLICIES = {
    "shipped": {"window": "swift", "path": "power_of_two", "loss": "rack", "credit": "none"},
    "fixed": {"window": "fixed", "path": "fixed", "loss": "fixed", "credit": "none"},
}
COLUMNS = ("contender", "round", "ns_per_segment", "segments", "acks", "resent")


@click.command("core")
@click.option(
    "--segments", default=1_000_000, show_default=True, help="Acknowledged segments per run."
)
@click.option("--segment-bytes", default=32_768, show_default=True)
@click.option("--paths", default=8, show_default=True)
@click.option("--repeats", default=5, show_default=True, help="Interleaved rounds.")
@json_option
def command(
    segments: int, segment_bytes: int, paths: int, repeats: int, json_path: str | None
) -> None:
    """Measures the CPU time per acknowledged segment in the protocol core, both ends together."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows: list[Config] = []
    with interruptible() as cut:
        for round_, name in rounds(repeats, tuple(POLICIES)):
            found = loops.bench_core(segments, segment_bytes, paths, POLICIES[name])
            rows.append({"contender": name, "round": round_, **found})
    medians = {
        name: median((r for r in rows if r["contender"] == name), "ns_per_segment")
        for name in dict.fromkeys(row["contender"] for row in rows)
    }
    notes = [f"median {ns:.0f} ns a segment, {name}" for name, ns in medians.items()]
    notes += [f"budget {BUDGET_NS} ns, shipped"]
    found = document("core", rows, median_ns_per_segment=medians, segment_bytes=segment_bytes)
    emit(found, json_path, COLUMNS, notes, cut)


if __name__ == "__main__":
    command()
