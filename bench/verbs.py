"""Measures the cost of a segment and of a path in the verbs datapath, over a fake libibverbs.

The fake (stub_provider) takes the posted work requests; separate rows show the fake's own cost. It
transfers headers; payloads are copied only in rows that say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from bench.lib import callgrind, loops
from bench.lib.common import (
    Config,
    Cut,
    document,
    emit,
    interruptible,
    json_option,
    median,
    print_table,
    rounds,
)
from transport.ground.units import binary_text, bytes_text

SEGMENT_BYTES = (4_096, 32_768)
UD_SEGMENT_BYTES_MAX = 4_096  # over UD, a segment must fit into one packet
BURSTS = (1, 4, 16)
MODES = ("UC", "RC", "UD")
PAYLOADS = ("none", "copied", "direct")
HEADER_BYTES = 64
COPIED_SHARE = 10  # a copied segment costs about ten times as much, so a tenth as many are sent
BUDGET_GBITS_PER_S = 400  # required rate per core, without payload copies, at segments of 32 KiB
MEMORY_BYTES_MAX = 4 << 30
SETUP_S_MAX = 60.0
# Usual least and most bytes of memory that a provider keeps per work request or completion.
REQUEST_BYTES = (64, 128)
RECEIVE_REQUEST_BYTES = (16, 32)
COMPLETION_BYTES = (64, 128)
# Segments of a short and a long run: the difference of their times excludes the set-up.
SHORT, LONG = 6_400, 25_600

COLUMNS = (
    *("what", "mode", "segment_bytes", "burst", "payload", "ns_per_segment"),
    *("send_ns", "receive_ns", "fake_ns", "gbits_per_s", "instructions", "fake_instructions"),
)
SETUP_COLUMNS = (
    *("mode", "peers", "paths", "setup_s", "break_s", "reestablish_s", "close_s", "bytes_per_path"),
    *("datapath_mb", "core_mb", "slots_mb", "provider_mb", "provider_calls"),
)


class Case(NamedTuple):
    """One measured way of sending segments; `burst` is 0 if the core chooses the bursts."""

    what: str
    mode: str
    segment_bytes: int
    burst: int
    payload: str

    def run(self, segments: int, paths: int) -> dict[str, Any]:
        if self.what == "core":
            return loops.bench_core(segments, self.segment_bytes, paths, {})
        return loops.bench_rdma(
            self.what, self.mode, self.payload, segments, self.segment_bytes, self.burst or 1, paths
        )

    @property
    def fake(self) -> Case:
        return self._replace(what="stub", payload="none")


def cases(modes: tuple[str, ...], payloads: tuple[str, ...]) -> Iterator[Case]:
    """Every case except those that measure the fake libibverbs alone."""
    yield from (Case("core", "", segment_bytes, 0, "none") for segment_bytes in SEGMENT_BYTES)
    for mode in modes:
        for segment_bytes in SEGMENT_BYTES:
            if mode == "UD" and segment_bytes > UD_SEGMENT_BYTES_MAX:
                continue
            for payload in payloads:
                if mode == "UD" and payload == "direct":
                    continue  # UD has no RDMA writes
                for burst in BURSTS:
                    yield Case("datapath", mode, segment_bytes, burst, payload)
                if payload != "direct":
                    yield Case("stack", mode, segment_bytes, 0, payload)


def measure(
    wanted: list[Case], segments: int, paths: int, repeats: int
) -> tuple[dict[Case, Config], Cut]:
    """Medians of interleaved rounds; the cost of a datapath includes the cost of the fake."""
    known = {str(case): case for case in (*wanted, *{c.fake for c in wanted if c.burst})}
    runs: dict[Case, list[Config]] = {case: [] for case in known.values()}
    with interruptible() as cut:
        for _, name in rounds(repeats, tuple(known)):
            case = known[name]
            share = 1 if case.payload == "none" else COPIED_SHARE
            runs[case].append(case.run(max(segments // share, 1), paths))
    columns = ("ns_per_segment", "send_ns_per_segment", "receive_ns_per_segment")
    times = {
        case: {column: median(found, column) for column in columns if column in found[0]}
        for case, found in runs.items()
        if found
    }
    return times, cut


def row_of(case: Case, times: dict[Case, Config]) -> Config:
    found = times[case]
    payload_bits = 8 * (case.segment_bytes - HEADER_BYTES)
    row: Config = {
        **case._asdict(),
        "burst": case.burst or None,
        "ns_per_segment": found["ns_per_segment"],
        "gbits_per_s": payload_bits / found["ns_per_segment"],
    }
    if case.burst:
        row["send_ns"] = found["send_ns_per_segment"]
        row["receive_ns"] = found["receive_ns_per_segment"]
        row["fake_ns"] = times[case.fake]["ns_per_segment"]
    return row


def count_instructions(rows: list[Config], wanted: list[Case], paths: int) -> None:
    """Adds instruction counts to rows where they are meaningful.

    Rows with payload copies get none, because the cost of a copy is not in instructions; nor do
    rows of the stack, whose timers see another clock under valgrind.
    """
    counted = [case for case in wanted if case.payload == "none" and case.burst]
    every = list(dict.fromkeys((*counted, *(case.fake for case in counted))))
    lengths = [(case, segments) for case in every for segments in (SHORT, LONG)]
    carried = {
        (case, segments): case.run(segments, paths)["carried_segments"]
        for case, segments in lengths
    }
    calls = "; ".join(f"Case{tuple(case)!r}.run({segments}, {paths})" for case, segments in lengths)
    totals = callgrind.count(f"from bench.verbs import Case; {calls}", "weft::bench::bench_rdma")
    if len(totals) != len(lengths):
        raise click.ClickException("callgrind does not know bench_rdma: were symbols stripped?")
    of = dict(zip(lengths, totals, strict=True))
    each = {
        case: (of[case, LONG] - of[case, SHORT]) / (carried[case, LONG] - carried[case, SHORT])
        for case in every
    }
    for row, case in zip(rows, wanted, strict=True):
        if case in each:
            row["instructions"] = each[case]
            row["fake_instructions"] = each[case.fake]


def set_up(mode: str, peers: int, paths: int) -> Config:
    """Connects queue pairs to many peers: measures weft's cost, and computes the provider's."""
    found = loops.bench_rdma_setup(mode, peers, paths, SEGMENT_BYTES[0])
    heap_bytes = found["datapath_bytes"]
    provider_bytes = [
        found["send_requests"] * REQUEST_BYTES[i]
        + found["receive_requests"] * RECEIVE_REQUEST_BYTES[i]
        + found["completions"] * COMPLETION_BYTES[i]
        for i in (0, 1)
    ]
    most = heap_bytes + found["core_bytes"] + found["registered_bytes"] + provider_bytes[1]
    return {
        **found,
        "mode": mode,
        "peers": peers,
        "paths": paths,
        "setup_s": (found["open_ns"] + found["connect_ns"]) / 1e9,
        "break_s": found["break_ns"] / 1e9,
        "reestablish_s": found["reestablish_ns"] / 1e9 if found["reestablished"] else None,
        "close_s": found["close_ns"] / 1e9,
        "bytes_per_path": heap_bytes / (peers * paths),
        "bytes_per_peer": heap_bytes / peers,
        "datapath_mb": heap_bytes / 1e6,
        "core_mb": found["core_bytes"] / 1e6,
        "slots_mb": found["registered_bytes"] / 1e6,
        "provider_mb": [count / 1e6 for count in provider_bytes],
        "bytes_most": most,
    }


def notes_of(rows: list[Config], setups: list[Config]) -> Iterator[str]:
    yield "posting and polling end at a fake libibverbs: no NIC is involved"
    yield "both ends together, on one core; fake: the fake's share of the time"
    control = [
        row
        for row in rows
        if (row["what"], row["segment_bytes"]) == ("datapath", 32_768)
        and row["payload"] != "copied"
    ]
    if control:
        least = min(row["gbits_per_s"] for row in control)
        met = "met" if least > BUDGET_GBITS_PER_S else "MISSED"
        yield (
            f"no copy (none, direct) at 32 KiB: {least:.0f} Gb/s a core at least"
            f" (target {BUDGET_GBITS_PER_S}: {met}); copying the payload is not included"
        )
    for found in setups:
        calls_us = (SETUP_S_MAX - found["setup_s"]) * 1e6 / found["provider_calls"]
        fits = "fits" if found["bytes_most"] <= MEMORY_BYTES_MAX else "does NOT fit"
        yield (
            f"{found['mode']}: {bytes_text(found['bytes_most'], 3)} at most, the provider's share"
            f" computed from the requests: {fits} in {binary_text(MEMORY_BYTES_MAX)};"
            f" set-up within {SETUP_S_MAX:.0f} s leaves a provider {calls_us:.0f} us a call"
        )


@click.command("verbs")
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(MODES), help="Modes; by default all."
)
@click.option("--payload", "payloads", multiple=True, type=click.Choice(PAYLOADS))
@click.option("--segments", default=100_000, show_default=True, help="Segments of a run.")
@click.option("--paths", default=8, show_default=True)
@click.option("--repeats", default=9, show_default=True, help="Interleaved rounds.")
@click.option("--instructions", is_flag=True, help="Also count instructions, with callgrind.")
@click.option(
    "--peers", default=1_000, show_default=True, help="Number of peers to set up; 0: none."
)
@click.option("--peer-paths", default=256, show_default=True, help="Paths to each of these peers.")
@json_option
def command(
    modes: tuple[str, ...],
    payloads: tuple[str, ...],
    segments: int,
    paths: int,
    repeats: int,
    instructions: bool,
    peers: int,
    peer_paths: int,
    json_path: str | None,
) -> None:
    """Measures the cost of a segment and a path in the verbs datapath, over a fake libibverbs."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    modes, payloads = modes or MODES, payloads or PAYLOADS
    setups = [set_up(mode, peers, peer_paths) for mode in modes if peers]
    wanted = list(cases(modes, payloads))
    times, cut = measure(wanted, segments, paths, repeats)
    # If the first round was interrupted, a case, or the case that measures its fake libibverbs
    # alone, may have no time yet. Such cases are left out.
    rows = [row_of(c, times) for c in wanted if c in times and (not c.burst or c.fake in times)]
    if instructions and not cut.short:
        count_instructions(rows, wanted, paths)
    found = document("verbs", rows, provider="stub_provider, a fake", setup=setups)
    if json_path != "-" and setups:
        print_table(SETUP_COLUMNS, [[_text(one.get(c)) for c in SETUP_COLUMNS] for one in setups])
    emit(found, json_path, COLUMNS, notes_of(rows, setups), cut)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_text(one) for one in value)
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    command()
