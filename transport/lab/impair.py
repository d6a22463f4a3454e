"""The eBPF programs that lose, corrupt and mark the packets of a link.

Each direction has one program, configured by its entry of an array map, which may change while
packets pass. State and counters are in a second map, so that changing the configuration loses no
count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from transport.lab.bpf import Assembler, Helper, Register
from transport.lab.model import ETHERNET_HEADER_BYTES, Link

R0, R1, R2, R3, R4, R5 = (Register(number) for number in range(6))
SKB, ORDERS, STATE, SCRATCH, STACK = (Register(number) for number in range(6, 11))

# Fields of an entry in the configuration map and in the state map; each field has 8 bytes.
ORDER_FIELDS = (
    *("cut", "loss_every", "burst_enter", "burst_leave", "burst_loss", "loss", "corruption"),
    *("cost", "mark_ns", "limit_ns", "frame_bytes_max"),
)
STATE_FIELDS = (
    *("packets", "bytes", "cut_drops", "losses", "corrupted", "marked"),
    *("phase", "in_burst", "free_at_ns"),
)
ORDER_BYTES, STATE_BYTES = 8 * len(ORDER_FIELDS), 8 * len(STATE_FIELDS)
ORDER = {name: 8 * i for i, name in enumerate(ORDER_FIELDS)}
KEPT = {name: 8 * i for i, name in enumerate(STATE_FIELDS)}

NEVER = (1 << 63) - 1
CERTAIN = 1 << 32  # probability 1: larger than any 32-bit random number
COST_SHIFT = 20  # ns per byte are stored as a fixed-point number with 20 fractional bits
SKB_LEN = 0  # offset of len in struct __sk_buff, linux/bpf.h
HEADERS_BYTES = 14 + 20  # Ethernet and IPv4 headers; only bytes after the headers are corrupted
PASS, SHOT = 0, 2  # TC_ACT_OK and TC_ACT_SHOT in linux/pkt_cls.h
TRIES = 4  # attempts to update the queue when other CPUs update it at the same time
KEY, BYTE, NOW = -4, -8, -24  # offsets of variables on the stack


@dataclass(frozen=True)
class Seen:
    """The counters of the eBPF program of one link direction."""

    packets: int
    bytes: int
    cut_drops: int
    losses: int
    corrupted: int
    marked: int


def orders(link: Link, *, cut: bool, marks: bool, up: bool = True) -> bytes:
    """The configuration entry of a link direction; without `marks` its queue sets no ECN marks."""
    packet_bytes_max = link.up_bytes_max if up else link.down_bytes_max
    rate = link.rate_bytes_per_s
    mark_ns = link.ecn_bytes * 10**9 // rate if marks and link.ecn_bytes else NEVER
    values = {
        "cut": int(cut),
        "loss_every": link.loss_every,
        "burst_enter": round(link.burst_enter * CERTAIN),
        "burst_leave": round(link.burst_leave * CERTAIN),
        "burst_loss": round(link.burst_loss * CERTAIN),
        "loss": round(link.loss * CERTAIN),
        "corruption": round(link.corruption * CERTAIN),
        "cost": (10**9 << COST_SHIFT) // rate,
        "mark_ns": mark_ns,
        "limit_ns": link.queue_bytes * 10**9 // rate,
        "frame_bytes_max": packet_bytes_max and packet_bytes_max + ETHERNET_HEADER_BYTES,
    }
    return struct.pack(f"<{len(ORDER_FIELDS)}Q", *(values[name] for name in ORDER_FIELDS))


def seen(entry: bytes) -> Seen:
    """The counters in a state entry."""
    return Seen(*struct.unpack_from("<6Q", entry))


def program(*, orders_map: int, state_map: int, index: int) -> bytes:
    """The program of one link direction; it uses entry `index` of the two open maps."""
    code = Assembler()
    code.let(SKB, "=", R1)
    code.store(STACK, KEY, index, 4)
    for descriptor, register in ((orders_map, ORDERS), (state_map, STATE)):
        code.load_map(R1, descriptor)
        code.let(R2, "=", STACK)
        code.let(R2, "+", KEY)
        code.call(Helper.MAP_LOOKUP)
        code.jump_if(R0, "==", 0, "pass")
        code.let(register, "=", R0)
    code.load(R1, SKB, SKB_LEN, 4)
    code.atomic_add(STATE, KEPT["bytes"], R1)
    count(code, "packets")
    lose(code)
    corrupt(code)
    queue(code)
    code.label("pass")
    code.leave(PASS)
    code.label("lost")
    count(code, "losses")
    code.label("drop")
    code.leave(SHOT)
    return code.assemble()


def count(code: Assembler, name: str) -> None:
    code.let(R1, "=", 1)
    code.atomic_add(STATE, KEPT[name], R1)


def with_chance(code: Assembler, share: str, label: str) -> None:
    """Jumps with the probability in the configuration field `share`."""
    code.call(Helper.RANDOM_U32)
    code.load(R1, ORDERS, ORDER[share])
    code.jump_if(R0, "<", R1, label)


def lose(code: Assembler) -> None:
    """Drops packets: all on a cut link, too long ones, every n-th, in loss bursts, at random."""
    code.load(R1, ORDERS, ORDER["cut"])
    code.jump_if(R1, "==", 0, "not_cut")
    count(code, "cut_drops")
    code.jump("drop")

    code.label("not_cut")
    code.load(R1, ORDERS, ORDER["frame_bytes_max"])
    code.jump_if(R1, "==", 0, "fits")
    code.load(R2, SKB, SKB_LEN, 4)
    code.jump_if(R2, ">", R1, "lost")

    code.label("fits")
    code.load(R1, ORDERS, ORDER["loss_every"])
    code.jump_if(R1, "==", 0, "not_nth")
    code.let(R2, "=", 1)
    code.fetch_add(STATE, KEPT["phase"], R2)
    code.let(R2, "+", 1)
    code.let(R2, "%", R1)
    code.jump_if(R2, "==", 0, "lost")

    # Gilbert-Elliott model: two states, each with a loss rate and a probability of leaving it.
    code.label("not_nth")
    code.load(R1, ORDERS, ORDER["burst_enter"])
    code.jump_if(R1, "==", 0, "calm")
    code.load(R1, STATE, KEPT["in_burst"])
    code.jump_if(R1, "!=", 0, "stormy")
    with_chance(code, "burst_enter", "storm_begins")
    code.jump("calm")
    code.label("storm_begins")
    code.store(STATE, KEPT["in_burst"], 1)
    code.jump("in_storm")
    code.label("stormy")
    with_chance(code, "burst_leave", "storm_ends")
    code.label("in_storm")
    with_chance(code, "burst_loss", "lost")
    code.jump("kept")
    code.label("storm_ends")
    code.store(STATE, KEPT["in_burst"], 0)
    code.label("calm")
    with_chance(code, "loss", "lost")
    code.label("kept")


def corrupt(code: Assembler) -> None:
    """Flips one random bit after the IP header without correcting any checksum."""
    with_chance(code, "corruption", "flip")
    code.jump("whole")
    code.label("flip")
    code.load(SCRATCH, SKB, SKB_LEN, 4)
    code.jump_if(SCRATCH, "<=", HEADERS_BYTES, "whole")
    code.let(SCRATCH, "-", HEADERS_BYTES)
    code.call(Helper.RANDOM_U32)
    code.let(R0, "%", SCRATCH)
    code.let(SCRATCH, "=", R0)
    code.let(SCRATCH, "+", HEADERS_BYTES)
    code.store(STACK, BYTE, 0)
    arguments_of_byte(code)
    code.call(Helper.SKB_LOAD_BYTES)
    code.jump_if(R0, "!=", 0, "whole")
    code.call(Helper.RANDOM_U32)
    code.let(R0, "&", 7)
    code.let(R1, "=", 1)
    code.let(R1, "<<", R0)
    code.load(R2, STACK, BYTE, 1)
    code.let(R2, "^", R1)
    code.store(STACK, BYTE, R2, 1)
    arguments_of_byte(code)
    code.let(R5, "=", 0)
    code.call(Helper.SKB_STORE_BYTES)
    code.jump_if(R0, "!=", 0, "whole")
    count(code, "corrupted")
    code.label("whole")


def arguments_of_byte(code: Assembler) -> None:
    """Sets a helper's arguments to copy a byte: packet, offset, stack buffer, length 1."""
    code.let(R1, "=", SKB)
    code.let(R2, "=", SCRATCH)
    code.let(R3, "=", STACK)
    code.let(R3, "+", BYTE)
    code.let(R4, "=", 1)


def queue(code: Assembler) -> None:
    """Marks packets CE by a virtual queue, which is stored as the time when it will be empty.

    The queue drains at the link's rate. Packets above the marking threshold get CE. Packets above
    the limit do not enter the virtual queue, because the real queue after it drops them.
    """
    code.load(SCRATCH, SKB, SKB_LEN, 4)
    code.load(R1, ORDERS, ORDER["cost"])
    code.let(SCRATCH, "*", R1)
    code.let(SCRATCH, ">>", COST_SHIFT)
    code.call(Helper.KTIME_NS)
    code.store(STACK, NOW, R0)
    for number in range(TRIES):
        code.load(R0, STATE, KEPT["free_at_ns"])
        code.let(R1, "=", R0)
        code.let(R2, "=", R0)
        code.load(R3, STACK, NOW)
        code.jump_if(R2, ">=", R3, f"busy{number}")
        code.let(R2, "=", R3)
        code.label(f"busy{number}")
        code.let(R2, "+", SCRATCH)
        code.let(R4, "=", R2)
        code.let(R4, "-", R3)
        code.load(R5, ORDERS, ORDER["limit_ns"])
        code.jump_if(R4, ">", R5, "queued")
        code.compare_exchange(STATE, KEPT["free_at_ns"], R2)
        code.jump_if(R0, "==", R1, "queued")
    code.label("queued")
    code.load(R5, ORDERS, ORDER["mark_ns"])
    code.jump_if(R4, "<=", R5, "pass")
    code.let(R1, "=", SKB)
    code.call(Helper.SKB_ECN_SET_CE)
    code.jump_if(R0, "!=", 1, "pass")
    count(code, "marked")
