"""Tests the parser of HLO text against small programs."""

import os
from pathlib import Path

import pytest

from tests.estimate.hlo_programs import ADD, LAYERS, program
from transport.estimate.hlo import text
from transport.estimate.hlo.shapes import (
    NESTING_MAX,
    Array,
    ShapeTextError,
    bytes_of_shape,
    parse_shape,
)
from transport.estimate.hlo.text import HloError, parse, read


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("f32[1024,256]{1,0}", 1 << 20),
        ("bf16[8]{0:T(8,128)(2,1)S(5)}", 16),
        ("f8e4m3fn[3,5]", 15),
        ("f8e5m2[16]", 16),
        ("f4e2m1fn[3]{0:E(4)}", 2),
        ("s4[6]", 3),
        ("u2[5]", 2),
        ("pred[7]", 7),
        ("c64[2]", 16),
        ("f32[<=8,2]", 64),
        ("f32[0]", 0),
        ("token[]", 0),
        ("()", 0),
        ("(f32[2]{0}, (s8[3], u32[]), token[])", 15),
    ],
)
def test_shape__bytes(shape: str, size: int) -> None:
    found, end = parse_shape(shape, 0)
    assert bytes_of_shape(found) == size
    assert end == len(shape)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("f33[2]", "unknown element type f33"),
        ("f32[2", "expected a shape"),
        ("f32[x]", "'x' is no dimension"),
        ("f32[?]", "'?' is no dimension"),
        ("(f32[2], s8[3]", "not closed"),
        ("(" * (NESTING_MAX + 1), "nest more than"),
        ("f32[9999999999,9999999999]", "more than 2^62 elements"),
        (f"f32[{','.join('1' * 65)}]", "more than 64 dimensions"),
    ],
)
def test_shape__errors(shape: str, says: str) -> None:
    with pytest.raises(ShapeTextError) as error:
        parse_shape(shape, 0)
    assert says in str(error.value)


def test_parse__a_program() -> None:
    found = parse(LAYERS)
    assert (found.name, found.partitions, found.replicas) == ("test", 8, 1)
    assert found.is_scheduled
    assert list(found.computations) == ["add", "main"]
    start = found.entry.named["gather-start"]
    assert (start.opcode, start.operands, start.line) == ("all-gather-start", ("w",), 12)
    assert start.shape == (Array("bf16", (1024, 4096)), Array("bf16", (4096, 4096)))
    assert start.attributes["replica_groups"] == "[2,4]<=[4,2]T(1,0)"
    assert "metadata" not in start.attributes
    assert found.entry.root is found.entry.named["out"]
    assert found.entry.root.operands == ("gather-done", "again", "sum")


def test_parse__other_ways_to_write_it() -> None:
    """Names without %, shapes of operands, several lines, comments, tables, another thread."""
    found = parse(
        """// a comment with a " and a {
HloModule jit_f.1

FileNames
1 "a {.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

wrapped {
  ROOT p = f32[4]{0} parameter(0) /* a ( */
}, execution_thread="other {"

ENTRY main.2 (x: f32[4], y: (f32[4], s32[])) -> (f32[4]) {
  x = f32[4]{0} parameter(0)
  c = s32[2]{0} constant({1, /*index=1*/ 2})
  add.1 = f32[4]{0} add(f32[4]{0} x,
      f32[4]{0} %x),
    backend_config={
      "one":{"n":"a } \\" ,"}
    }, sharding={maximal device=0}
  slice = f32[2]{0} slice(add.1), slice={[0:2]}
  ROOT t = (f32[2]{0}) tuple(slice) }
"""
    )
    assert found.entry.named["add.1"].operands == ("x", "x")
    assert found.entry.named["c"].literal == "{1,   2}"
    assert found.entry.named["slice"].line == 22
    assert found.computations["wrapped"].root is not None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("", "line 1: expected HloModule"),
        ("module @jit_f {\n}", "line 1: this is MLIR"),
        ("HloModule m\n", "line 2: the program has 0 ENTRY computations"),
        (program("  ROOT %x = f32[2]{0} negate(%y)"), "line 10: operand y is not defined"),
        (program("  ROOT %x = f32[2]{0} negate(%x)"), "line 10: operand x is not defined"),
        (program("  %x = f32[2]{0} parameter(0)\n  %x = f32[] constant(0)"), "line 11: a second x"),
        (program("  %x = f32[2]{0} parameter(0"), "line 11: unexpected }"),
        ("HloModule m\nENTRY %main {\n  %x = f32[2]{0} parameter(0", "line 3: ( is not closed"),
        (program("  %x = f32[2]{0} parameter(0], a=b"), "line 10: unexpected ]"),
        (program("  %x = f32[2]{0} parameter(0), a=b)"), "line 10: unexpected )"),
        (program("  %x = f32[2]{0} parameter"), "line 10: expected an operation"),
        (program("  %x f32[2]{0} parameter(0)"), "line 10: expected an instruction of main"),
        (program('  %x = f32[] parameter(0), metadata={op_name="a'), "a string is not closed"),
        (program("  %x = f32[] /* parameter(0)"), "line 10: a comment is not closed"),
        (program("  %x = f99[2] parameter(0)"), "line 10: unknown element type f99"),
        (program("  %x = f32[] parameter(0)\n  %y = f32[] negate(1 2, )"), "'' is no operand"),
        (program(""), "line 9: computation main has no instructions"),
        (program("  %x = f32[] parameter(0)", before=ADD + ADD), "a second computation add"),
        (program("  %x = f32[] parameter(0)", header="num_partitions=0"), "num_partitions=0"),
        (program("  %x = f32[] parameter(0)") + "HloModule b", "a second HloModule"),
        (program("  %x = f32[] parameter(0)") + "ENTRY x", "expected { after the head"),
        (program("  %x = f32[2,2] dot()"), "line 10: dot x has 0 operands: it needs 2"),
        (
            program("  %x = f32[2,2] parameter(0)\n  %y = f32[2,2] dot(%x)"),
            "line 11: dot y has 1 operand: it needs 2",
        ),
        (program("  %x = f32[2] all-reduce()"), "all-reduce x has 0 operands: it needs 1"),
        *(
            (
                program(f"  %x = f32[] parameter(0)\n  %y = f32[] {one}"),
                "line 11: y calls gone, which the file does not have",
            )
            for one in (
                "call(%x), to_apply=%gone",
                "reduce(%x, %x), to_apply=gone",
                "fusion(%x), calls=%gone",
                "while(%x), condition=%add, body=%gone",
                "conditional(%x, %x), branch_computations={%add, %gone}",
                "custom-call(%x), called_computations={%gone}",
            )
        ),
        (program("  %x = f32[] parameter(0)\n  %y = f32[] async-start(%x)"), "y has no calls="),
    ],
)
def test_parse__errors_name_the_line(wrong: str, says: str) -> None:
    with pytest.raises(HloError) as error:
        parse(wrong)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_parse__errors_are_short() -> None:
    with pytest.raises(HloError) as error:
        parse(f"HloModule m\n{'a' * 100_000}")
    assert len(str(error.value)) == text.ERROR_MAX


def test_read__a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "x.hlo"
    file.write_text(LAYERS, encoding="utf-8-sig")
    assert read(file) == parse(LAYERS)


def test_read__bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.hlo"
    with pytest.raises(HloError, match="cannot read"):
        read(file)
    file.write_bytes(b"\x0a\xff\x00")
    with pytest.raises(HloError, match="is no text: give HLO text, not a proto"):
        read(file)
    file.write_text(LAYERS, encoding="utf-16")
    with pytest.raises(HloError, match="is no text: it is UTF-16"):
        read(file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HloError, match=r"cannot read .*pipe: it is a pipe"):
        read(tmp_path / "pipe")
    monkeypatch.setattr(text, "FILE_BYTES_MAX", 1 << 20)
    file.write_text(LAYERS + " " * (1 << 20))
    with pytest.raises(HloError, match="is larger than 1 MiB"):
        read(file)
