"""Shapes of HLO text, such as f32[1024,256]{1,0} and (bf16[8], token[]), without their layouts.

The syntax is that of XLA's own text format (openxla.org/xla, "Shapes and layout").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

# Bits of an element. Types of 8 bits and less are found by WIDTH: f8e4m3fn, f4e2m1fn, s4, u2.
BITS = {
    "pred": 8,
    "bf16": 16,
    "c64": 64,
    "c128": 128,
    "token": 0,
    "opaque": 0,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": bits for bits in (16, 32, 64)},
}
WIDTH = re.compile(r"(?:f([468])e\w+|[su]([124]))")
ELEMENTS_MAX = 1 << 62  # in one array; XLA counts elements in 64 bits
DIMENSIONS_MAX = 64
NESTING_MAX = 32  # of tuples

_ARRAY = re.compile(r"\s*([a-z]\w*)\[([^\[\]]*)\](?:\{[^{}]*\})?")
_OPEN = re.compile(r"\s*(?:b\s*)?\(")  # `b(f32[8])` is a buffer
_NEXT = re.compile(r"\s*([,)])")
_DIMENSION = re.compile(r"\s*(?:<=)?([0-9]{1,19})\s*")


class ShapeTextError(ValueError):
    """Text that is no shape. `position`: where it goes wrong."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position


@dataclass(frozen=True)
class Array:
    """An array. `dims`: elements of each dimension; of dynamic ones the maximum."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of all elements; elements of less than a byte are packed."""
        return -(-self.elements * bits_of(self.dtype) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


Shape: TypeAlias = "Array | tuple[Shape, ...]"


def bits_of(dtype: str) -> int:
    """Bits of an element. KeyError if XLA has no such type."""
    if dtype in BITS:
        return BITS[dtype]
    match = WIDTH.fullmatch(dtype)
    if match is None:
        raise KeyError(dtype)
    return int(match[1] or match[2])


def arrays(shape: Shape) -> Iterator[Array]:
    """The arrays of a shape, from left to right."""
    if isinstance(shape, Array):
        yield shape
        return
    for one in shape:
        yield from arrays(one)


def bytes_of_shape(shape: Shape) -> int:
    return sum(one.bytes for one in arrays(shape))


def shape_text(shape: Shape) -> str:
    """The shape as text, such as (f32[8], s32[])."""
    if isinstance(shape, Array):
        return str(shape)
    return f"({', '.join(map(shape_text, shape))})"


def parse_shape(text: str, position: int) -> tuple[Shape, int]:
    """The shape that begins at a position, and the position behind it. ShapeTextError."""
    open_tuples: list[list[Shape]] = []
    while True:
        found, position, is_open = _opened(text, position, open_tuples)
        if is_open:
            continue
        while True:
            if not open_tuples:
                assert found is not None
                return found, position
            if found is not None:
                open_tuples[-1].append(found)
            match = _NEXT.match(text, position)
            if match is None:
                raise ShapeTextError("a tuple of shapes is not closed", position)
            position = match.end()
            if match[1] == ",":
                break
            found = tuple(open_tuples.pop())


def _opened(
    text: str, position: int, open_tuples: list[list[Shape]]
) -> tuple[Shape | None, int, bool]:
    """Reads an array, or the beginning of a tuple: (array, position behind it, is a tuple)."""
    match = _OPEN.match(text, position)
    if match is None:
        return *_array(text, position), False
    if len(open_tuples) == NESTING_MAX:
        raise ShapeTextError(f"tuples nest more than {NESTING_MAX} deep", position)
    open_tuples.append([])
    empty = _NEXT.match(text, match.end())
    is_empty = empty is not None and empty[1] == ")"
    return None, match.end(), not is_empty


def _array(text: str, position: int) -> tuple[Array, int]:
    match = _ARRAY.match(text, position)
    if match is None:
        raise ShapeTextError("expected a shape, such as f32[8,128]", position)
    dtype, inside = match[1], match[2].strip()
    try:
        bits_of(dtype)
    except KeyError:
        raise ShapeTextError(f"unknown element type {dtype[:32]}", match.start(1)) from None
    texts = inside.split(",") if inside else []
    if len(texts) > DIMENSIONS_MAX:
        raise ShapeTextError(f"more than {DIMENSIONS_MAX} dimensions", position)
    dims = []
    for one in texts:
        number = _DIMENSION.fullmatch(one)
        if number is None:
            raise ShapeTextError(f"{one.strip()[:32]!r} is no dimension", match.start(2))
        dims.append(int(number[1]))
    found = Array(dtype, tuple(dims))
    if prod(max(one, 1) for one in dims) > ELEMENTS_MAX:
        raise ShapeTextError("an array has more than 2^62 elements", position)
    return found, match.end()
