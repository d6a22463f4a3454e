"""Measures what a byte over UDP costs by stage: the kernel's ways, copies, and weft's stream.

Plain sockets in C++ have a thread for each end and no protocol. weft has a process for each end.
All contenders run in each round, on each wire.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import click

from bench.lib import loops
from bench.lib.common import (
    Config,
    cores_of_sides,
    document,
    duel,
    emit,
    interruptible,
    json_option,
    rounds,
    verdict,
)
from bench.lib.options import Size
from bench.lib.softirqs import softirqs
from bench.lib.stage_weft import MESSAGE_BYTES, Words, filled, receiver, sender, touched
from bench.lib.stats import grouped, summarised
from bench.lib.veth import Host, dropping, looped, wired
from transport.lab import LabError

MTU_BYTES = (1500, 9000)
UDP_IP_BYTES = 28
WIRES = {"veth": wired, "lo": looped, "dropped": dropping}
# Contender -> how C++ sends, receives and copies what it received (bench/native/loops).
WAYS = {
    "sendmmsg": ("mmsg", "mmsg", "none"),
    "GSO": ("gso", "gro", "none"),
    "MSG_ZEROCOPY": ("zerocopy", "gro", "none"),
    "io_uring": ("ring", "ring", "none"),
    "io_uring SEND_ZC": ("ring_zerocopy", "ring", "none"),
    "GSO, copy": ("gso", "gro", "plain"),
    "GSO, streaming copy": ("gso", "gro", "streaming"),
    "GSO, CRC copy": ("gso", "gro", "checked"),
    "GSO, CRC, streaming copy": ("gso", "gro", "checked_streaming"),
}
# Without receivers.
SENDERS = {
    **{name: (*way[:1], "none", "none") for name, way in WAYS.items() if way[2] == "none"},
    "GSO, CRC": ("gso", "none", "checked"),
    "MSG_ZEROCOPY, CRC": ("zerocopy", "none", "checked"),
    "io_uring SEND_ZC, CRC": ("ring_zerocopy", "none", "checked"),
    "GSO, CRC, headers": ("gso_headers", "none", "checked"),
    "MSG_ZEROCOPY, CRC, headers": ("zerocopy_headers", "none", "checked"),
}
COPIES = {
    "copy": "plain",
    "streaming copy": "streaming",
    "CRC copy": "checked",
    "CRC, streaming copy": "checked_streaming",
}
# Knobs. Without CRC weft warns. By default engines and callers poll for a while before they sleep.
WEFT: dict[str, Config] = {
    "weft": {},
    "weft, no CRC": {"payload_crc": "off", "log_level": "error"},
    "weft, no polling": {"poll": {"engine": 0, "caller": 0}},
}
WEFT_TIMES = 4  # as many bytes: the kernel updates the times of other threads at each tick
MEMORY = "memory"  # the wire of copies
PLAIN, CRC, BASES = "GSO", "GSO, CRC copy", ("GSO", "copy")
KEYS = ("wire", "mtu_bytes", "contender")
MEASURES = {"ns_per_byte": "lower", "ratio": "lower"}
COLUMNS = (
    *("wire", "mtu_bytes", "contender", "sender_ns", "receiver_ns", "ns_per_byte"),
    *("ratio", "ratio_min", "ratio_max", "copies_sent", "copies_received", "kernel_ns"),
    *("ksoftirqd_ns", "missing"),
)
NOTES = (
    "ns of processor time for each byte of payload. ratio: to GSO in the same round and on the"
    " same wire; of copies in memory: to memcpy",
    "veth and lo: the kernel receives within the call that sends, up to the receiver's socket;"
    " the receiver has the copy to user memory and the release of packets",
    "dropped: packets end at the far interface, before the stack, so the kernel need not copy"
    " what it sends without a copy. A NIC's driver is missing, and a receiver",
    "headers: each datagram begins with 32 B from other memory, as weft's do. kernel_ns: of weft,"
    " sampled at clock ticks",
)


@dataclass(frozen=True)
class Job:
    """One run: a contender on a wire."""

    wire: str
    mtu_bytes: int
    contender: str

    @property
    def datagram_bytes(self) -> int:
        return self.mtu_bytes - UDP_IP_BYTES

    def __str__(self) -> str:
        return f"{self.wire} {self.mtu_bytes} {self.contender}"


@dataclass(frozen=True)
class Load:
    """How much is moved, and between which memory."""

    source: Words
    target: Words
    bytes: int

    @property
    def warm_bytes(self) -> int:
        return self.bytes // 8


def jobs(mtus: Sequence[int], wires: Sequence[str], only: Sequence[str]) -> list[Job]:
    """All runs of a round. A dropping wire has no receivers."""
    known = {
        "veth": (*WAYS, *WEFT),
        "lo": (*WAYS, *WEFT),
        "dropped": tuple(SENDERS),
        MEMORY: tuple(COPIES),
    }
    return [
        Job(wire, mtu_bytes, name)
        for wire in wires
        for mtu_bytes in mtus
        for name in known[wire]
        if not only or name in only or name in BASES
    ]


def measure(job: Job, hosts: tuple[Host, Host] | None, load: Load) -> Config:
    """Runs a job; a row with `missing` tells what this machine lacks for it."""
    if job.wire == MEMORY:
        return copied(job, load)
    assert hosts is not None
    if job.contender in WEFT:
        return streamed(job, hosts, load)
    return moved(job, hosts, load)


def copied(job: Job, load: Load) -> Config:
    kind = COPIES[job.contender]
    try:
        ns = loops.bench_copy(kind, load.source, load.target, job.datagram_bytes, load.bytes)
    except ValueError as error:
        return {"missing": f"not there: {error}"}
    return per_byte({"ns_per_byte": ns}, load.bytes)


def moved(job: Job, hosts: tuple[Host, Host], load: Load) -> Config:
    """Plain sockets."""
    way = SENDERS[job.contender] if job.wire == "dropped" else WAYS[job.contender]
    near, far = ((host.descriptor, host.address) for host in hosts)
    halves = cores_of_sides()
    cpus = (min(halves[1]), min(halves[0]))  # as duel() places a sender and a receiver
    with softirqs() as kernels:
        found: Config = loops.bench_stages(
            *(way, near, far, cpus, load.source, load.target),
            *(job.datagram_bytes, load.warm_bytes, load.bytes),
        )
    if found["missing"]:
        return {"missing": f"not there: {found['missing']}"}
    if found["lost_bytes"]:
        raise click.ClickException(f"{job}: {found['lost_bytes']} B were lost")
    completions = found["completions"]
    row = {
        "sender_ns": found["sender_ns"],
        "receiver_ns": None if job.wire == "dropped" else found["receiver_ns"],
        "ns_per_byte": found["sender_ns"] + found["other_ns"],
        "other_ns": found["other_ns"],
        **kernels,
    }
    row["ns_per_byte"] += row["receiver_ns"] or 0
    return per_byte(row, found["bytes"]) | {
        "copies_sent": found["copied"] / completions if completions else 1.0,
        "copies_received": None if job.wire == "dropped" else 1.0 + (way[2] != "none"),
        "datagrams_per_message": found["train_bytes"] // job.datagram_bytes,
        "messages": found["messages"],
        "wrong": found["wrong"],
    }


def streamed(job: Job, hosts: tuple[Host, Host], load: Load) -> Config:
    """weft's stream of messages of 1 MiB."""
    messages = max(WEFT_TIMES * load.bytes // MESSAGE_BYTES, 1)
    config = {
        "spaces": [host.name for host in hosts],
        "knobs": {"interfaces": hosts[0].interface, **WEFT[job.contender]},
        "buffer_bytes": load.source.nbytes,
        "warm": max(load.warm_bytes // MESSAGE_BYTES, 1),
        "messages": messages,
    }
    received, sent = duel(receiver, sender, config)
    spent = [sum(end["cores"].values()) * end["seconds"] * 1e9 for end in (sent, received)]
    row = {"sender_ns": spent[0], "receiver_ns": spent[1], "ns_per_byte": sum(spent)}
    row["kernel_ns"] = spent[0] * sent["kernel_share"] + spent[1] * received["kernel_share"]
    row |= {name: sent[name] for name in ("ksoftirqd_ns", "softirq_ns")}
    return per_byte(row, messages * MESSAGE_BYTES) | {
        "copies_sent": 1.0,
        "copies_received": 2.0,  # into a buffer of the engine, and to its place
        "bytes_per_s": round(messages * MESSAGE_BYTES / sent["seconds"]),
        "threads_sent": sent["cores"],
        "threads_received": received["cores"],
        "wrong": received["wrong"],
    }


def per_byte(row: Config, count: int) -> Config:
    """The row with times for each byte, of which a millionth of a ns is left."""
    return {name: None if value is None else round(value / count, 6) for name, value in row.items()}


def with_ratios(rows: list[Config]) -> list[Config]:
    """The rows, each with its ratio to the plain way of its round and wire."""
    for mine in grouped(rows, ("round", "wire", "mtu_bytes")).values():
        base = next((row for row in mine if row["contender"] in BASES), None)
        for row in mine:
            if base is not None and "ns_per_byte" in row and "ns_per_byte" in base:
                row["ratio"] = round(row["ns_per_byte"] / base["ns_per_byte"], 4)
    return rows


def shares(rows: Sequence[Config]) -> Iterator[str]:
    """What of weft's cost plain sockets have, too: medians over the rounds."""
    for (wire, mtu_bytes), mine in grouped(rows, ("wire", "mtu_bytes")).items():
        parts = []
        for one in grouped(mine, ("round",)).values():
            known = {row["contender"]: row for row in one if "ns_per_byte" in row}
            if {"weft", PLAIN, CRC} <= known.keys():
                weft, plain, copying = (known[name] for name in ("weft", PLAIN, CRC))
                whole, ways = weft["ns_per_byte"], (plain["ns_per_byte"], copying["ns_per_byte"])
                parts.append((whole, *ways, whole - ways[1], weft["kernel_ns"]))
        if parts:
            found = [statistics.median(part) for part in zip(*parts, strict=True)]
            yield (
                "{}, MTU {}: weft takes {:.3f} ns a byte. Plain sockets take {:.3f} of that, {:.3f}"
                " with its checksums and its second copy; {:.3f} are the rest: protocol, its"
                " packets, waking up. {:.3f} of all are spent in the kernel"
            ).format(wire, mtu_bytes, *found)


def zero_copies(rows: Sequence[Config]) -> Iterator[str]:
    """Whether the kernel copied what it was to send without a copy."""
    for row in rows:
        if "Z" in row["contender"] and row.get("copies_sent") is not None:
            yield (
                f"{row['wire']}, MTU {row['mtu_bytes']}, {row['contender']}: the kernel says that"
                f" it copied {row['copies_sent']:.0%} of the messages after all;"
                f" {row['datagrams_per_message']} datagrams a message"
            )


def run(repeats: int, wanted: list[Job], load: Load, rows: list[Config]) -> None:
    """Adds the rows of all rounds. All wires exist until the end."""
    by_name = {str(job): job for job in wanted}
    with ExitStack() as stack:
        hosts: dict[tuple[str, int], Any] = {}
        for job in wanted:
            where = (job.wire, job.mtu_bytes)
            if job.wire in WIRES and where not in hosts:
                wire: AbstractContextManager[Any] = WIRES[job.wire](job.mtu_bytes)
                hosts[where] = stack.enter_context(wire)
        for round_, name in rounds(repeats, tuple(by_name)):
            job = by_name[name]
            found = measure(job, hosts.get((job.wire, job.mtu_bytes)), load)
            head = {"wire": job.wire, "mtu_bytes": job.mtu_bytes, "contender": job.contender}
            rows.append(head | {"round": round_, "load": round(os.getloadavg()[0], 1)} | found)


def tiny(ctx: click.Context, _param: click.Parameter, on: bool) -> None:
    if on:
        ctx.default_map = {"moved_bytes": 4 << 20, "buffer_bytes": 4 << 20, "repeats": 1}


@click.command("stages")
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option(
    "--bytes", "moved_bytes", default="256M", show_default=True, type=Size(), help="In each run."
)
@click.option(
    "--buffer",
    "buffer_bytes",
    default="128M",
    show_default=True,
    type=Size(MESSAGE_BYTES),
    help="Memory that payload is read from, and memory that it is written to.",
)
@click.option(
    "--mtu", "mtus", multiple=True, type=click.IntRange(576, 9216), help="MTU; may be repeated."
)
@click.option(
    "--wire",
    "wires",
    multiple=True,
    type=click.Choice((*WIRES, MEMORY)),
    help="All by default; may be repeated.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    type=click.Choice(tuple(dict.fromkeys((*WAYS, *SENDERS, *COPIES, *WEFT)))),
    help="Contenders to run, besides those that ratios are to.",
)
@click.option(
    "--tiny", is_flag=True, is_eager=True, callback=tiny, expose_value=False, help="4 MiB, once."
)
@json_option
def command(
    repeats: int,
    moved_bytes: int,
    buffer_bytes: int,
    mtus: tuple[int, ...],
    wires: tuple[str, ...],
    only: tuple[str, ...],
    json_path: str | None,
) -> None:
    """Measures the processor time of a byte over UDP: the kernel's ways, copies, and weft.

    Wires: veth between two namespaces, lo, a veth whose far end drops all packets, and copies in
    memory without a wire. Plain sockets send and receive in a thread each; the time that these wait
    is not counted. weft's time is that of both processes, waiting included. Needs root.
    """
    loops.load()
    wanted = jobs(mtus or MTU_BYTES, wires or (*WIRES, MEMORY), only)
    load = Load(filled(buffer_bytes), touched(buffer_bytes), moved_bytes)
    rows: list[Config] = []
    with interruptible() as cut:
        try:
            run(repeats, wanted, load, rows)
        except PermissionError as error:
            raise click.ClickException(f"run it as root: {error}") from None
        except (LabError, ValueError) as error:
            raise click.ClickException(str(error)) from None
    summary = summarised(with_ratios(rows), KEYS, MEASURES) if rows else []
    settings = {"bytes": moved_bytes, "buffer_bytes": buffer_bytes}
    found = document(
        "stages", summary, keys=list(KEYS), measures=MEASURES, settings=settings, rounds=rows
    )
    said = [*NOTES, *zero_copies(summary), *shares(rows)]
    emit(found, json_path, COLUMNS, said, cut)
    verdict(all(not row.get("wrong") for row in rows))


if __name__ == "__main__":
    command()
