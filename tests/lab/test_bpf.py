"""Tests that the assembler encodes eBPF as the kernel defines it, and that the kernel loads it."""

import os

import pytest

from tests.lab.support import reason_to_skip
from transport.lab import LabError, Link, impair, kernel
from transport.lab.bpf import Assembler, Helper, Register

R0, R1, R2, R10 = Register.R0, Register.R1, Register.R2, Register.R10


def hexed(code: Assembler) -> list[str]:
    data = code.assemble()
    return [data[i : i + 8].hex() for i in range(0, len(data), 8)]


def test_bpf__instructions() -> None:
    code = Assembler()
    code.let(R1, "=", R2)  # each line as in the kernel's instruction set document
    code.let(R1, "+", -4)
    code.load(R2, R1, 16, 4)
    code.store(R10, -4, 7, 4)
    code.store(R10, -8, R2)
    code.atomic_add(R1, 8, R2)
    code.fetch_add(R1, 8, R2)
    code.compare_exchange(R1, 8, R2)
    code.call(Helper.KTIME_NS)
    code.leave(2)
    assert hexed(code) == [
        *("bf21000000000000", "07010000fcffffff", "6112100000000000", "620afcff07000000"),
        *("7b2af8ff00000000", "db21080000000000", "db21080001000000", "db210800f1000000"),
        *("8500000005000000", "b700000002000000", "9500000000000000"),
    ]


def test_bpf__jumps_find_their_labels() -> None:
    code = Assembler()
    code.label("again")
    code.jump_if(R1, "==", 3, "end")
    code.jump("again")
    code.label("end")
    code.leave(0)
    assert hexed(code)[:2] == ["1501010003000000", "0500feff00000000"]


def test_bpf__labels_are_checked() -> None:
    code = Assembler()
    code.jump("nowhere")
    with pytest.raises(LabError, match="nowhere"):
        code.assemble()
    code.label("here")
    with pytest.raises(LabError, match="twice"):
        code.label("here")


def test_impair__orders_hold_the_link() -> None:
    link = Link(rate_bytes_per_s=10**9, queue_bytes=100_000, ecn_bytes=50_000, loss=0.5)
    words = impair.orders(link, cut=True, marks=True)
    value = {n: int.from_bytes(words[at : at + 8], "little") for n, at in impair.ORDER.items()}
    assert value["cut"] == 1
    assert value["loss"] == 1 << 31
    assert value["cost"] == 1 << impair.COST_SHIFT  # one ns per byte, as a fixed-point number
    assert (value["mark_ns"], value["limit_ns"]) == (50_000, 100_000)
    unmarked = impair.orders(link, cut=False, marks=False)
    at = impair.ORDER["mark_ns"]
    assert int.from_bytes(unmarked[at : at + 8], "little") == impair.NEVER


@pytest.mark.namespaces
def test_kernel__maps_and_programs() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    descriptor = kernel.create_array("weft_test", 16, 3)
    again = -1
    try:
        map_id, *rest = kernel.map_info(descriptor)
        assert rest == [16, 3, "weft_test"]
        kernel.write_map(descriptor, 2, bytes(range(16)))
        again = kernel.open_map(map_id)
        assert kernel.read_map(again, 2, 16) == bytes(range(16))
        bad = Assembler()
        bad.let(R0, "=", R2)  # R2 is uninitialised, so the verifier must refuse
        bad.leave(0)
        with pytest.raises(OSError, match="R2 !read_ok"):
            kernel.load_classifier("weft_test", bad.assemble())
    finally:
        for one in (descriptor, again):
            if one >= 0:
                os.close(one)
