"""Tests operations, bytes and trip counts of HLO instructions against counts by hand."""

import pytest

from tests.estimate.hlo_programs import program
from transport.estimate.gpus import gpu
from transport.estimate.hlo.costs import Costs
from transport.estimate.hlo.loops import trips_of
from transport.estimate.hlo.text import HloError, parse

GEMM = (
    'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
    '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
)
ESCAPED = (
    'custom_call_target="__cublas$lt$matmul$f8", backend_config='
    '"{\\"dot_dimension_numbers\\":{\\"lhs_contracting_dimensions\\":[\\"1\\"]}}"'
)


@pytest.mark.parametrize(
    ("operands", "one", "flops"),
    [
        (
            "f32[8,4] f32[4,32]",
            "f32[8,32] dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            2 * 8 * 32 * 4,
        ),
        (
            "bf16[5,8,16] bf16[5,16,32]",
            "bf16[5,8,32] dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
            "rhs_batch_dims={0}, rhs_contracting_dims={1}",
            2 * 5 * 8 * 32 * 16,
        ),
        (
            "f32[4,4,16] f32[4,4,16,3]",
            "f32[4,3] dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={1,2}, "
            "rhs_batch_dims={0}, rhs_contracting_dims={1,2}",
            2 * 4 * 3 * 4 * 16,
        ),
        (
            "f16[8,16] f16[16,32]",
            f"(f16[8,32], s8[64]) custom-call(%p0, %p1), {GEMM}",
            2 * 8 * 32 * 16,
        ),
        (
            "f8e4m3fn[8,16] f8e4m3fn[16,32]",
            f"bf16[8,32] custom-call(%p0, %p1), {ESCAPED}",
            2 * 8 * 32 * 16,
        ),
        # 3 x 3 weights of 16 inputs for each of 4 x 8 x 8 x 32 outputs.
        (
            "f32[4,8,8,16] f32[3,3,16,32]",
            "f32[4,8,8,32] convolution(%p0, %p1), window={size=3x3}, dim_labels=b01f_01io->b01f",
            2 * 4 * 8 * 8 * 32 * 3 * 3 * 16,
        ),
        # The same as the gradients of its input and of its weights.
        (
            "f32[4,8,8,32] f32[3,3,16,32]",
            '(f32[4,8,8,16], u8[0]) custom-call(%p0, %p1), dim_labels=b01f_01io->b01f, '
            'custom_call_target="__cudnn$convBackwardInput"',
            2 * 4 * 8 * 8 * 32 * 3 * 3 * 16,
        ),
        (
            "f32[4,8,8,16] f32[4,8,8,32]",
            '(f32[3,3,16,32], u8[0]) custom-call(%p0, %p1), dim_labels=b01f_01io->b01f, '
            'custom_call_target="__cudnn$convBackwardFilter"',
            2 * 4 * 8 * 8 * 32 * 3 * 3 * 16,
        ),
        ("f32[8] f32[8]", "f32[8] add(%p0, %p1)", 0),
        ("f32[8,16] f32[16,32]", 'f32[8,32] custom-call(%p0, %p1), custom_call_target="mine"', 0),
    ],
)  # fmt: skip
def test_flops__of_products(operands: str, one: str, flops: int) -> None:
    body = "".join(f"  %p{at} = {s} parameter({at})\n" for at, s in enumerate(operands.split()))
    module = parse(program(f"{body}  ROOT %y = {one}"))
    costs = Costs(module, gpu("h200"))
    assert sum(costs.flops(module.entry.named["y"], module.entry).values()) == flops
    assert costs.unknown == ({"mine"} if "mine" in one else set())


@pytest.mark.parametrize(
    "dims",
    [
        "",  # of no dimension the result would be f32[8,4,4,32]
        "lhs_contracting_dims={1}",
        "lhs_contracting_dims={2}, rhs_contracting_dims={0}",
        "lhs_contracting_dims={-1}, rhs_contracting_dims={0}",
        "lhs_contracting_dims={1.5}, rhs_contracting_dims={0}",
        "lhs_contracting_dims={one}, rhs_contracting_dims={0}",
        "lhs_contracting_dims={1,1}, rhs_contracting_dims={0,0}",
        "lhs_contracting_dims={0}, rhs_contracting_dims={0}",  # 8 and 4 elements
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_batch_dims={7}, rhs_batch_dims={}",
    ],
)
def test_flops__of_broken_dimension_numbers_are_counted_as_missing(dims: str) -> None:
    body = "  %a = f32[8,4] parameter(0)\n  %b = f32[4,32] parameter(1)\n"
    module = parse(program(f"{body}  ROOT %y = f32[8,32] dot(%a, %b), {dims}".rstrip(", ")))
    costs = Costs(module, gpu("h200"))
    assert costs.flops(module.entry.named["y"], module.entry) == {}
    assert costs.broken == {("dot", "main", "y")}


@pytest.mark.parametrize(
    ("one", "moved"),
    [
        ("f32[100] add(%a, %a)", 1200),
        ("f32[100] bitcast(%a)", 0),
        ("f32[10] slice(%a), slice={[0:10]}", 80),
        ("f32[100] dynamic-update-slice(%a, %b, %zero)", 80),
        ("f32[10] fusion(%a, %zero), calls=%sliced", 40 + 40 + 4),
        ("f32[100] fusion(%a, %b, %zero), calls=%updated", 40 + 40 + 4),
        ("(f32[100], f32[10]) fusion(%a, %b), calls=%both", 400 + 40 + 400 + 40),
        ('f32[100] custom-call(%a), custom_call_target="Sharding"', 0),
        ("(f32[100], f32[100], u32[]) copy-start(%a)", 800),
    ],
)
def test_moved_bytes(one: str, moved: int) -> None:
    fused = """
sliced {
  p0 = f32[100] parameter(0)
  p1 = s32[] parameter(1)
  ROOT s = f32[10] dynamic-slice(p0, p1), dynamic_slice_sizes={10}
}
updated {
  p0 = f32[100] parameter(0)
  p1 = f32[10] parameter(1)
  p2 = s32[] parameter(2)
  ROOT u = f32[100] dynamic-update-slice(p0, p1, p2)
}
both {
  p0 = f32[100] parameter(0)
  p1 = f32[10] parameter(1)
  n = f32[100] negate(p0)
  ROOT t = (f32[100], f32[10]) tuple(n, p1)
}
"""
    body = (
        "  %a = f32[100] parameter(0)\n  %b = f32[10] parameter(1)\n  %zero = s32[] constant(0)\n"
    )
    module = parse(program(f"{body}  ROOT %y = {one}", before=fused))
    assert Costs(module, gpu("h200")).moved_bytes(module.entry.named["y"], module.entry) == moved


def test_ns__is_the_longer_of_products_and_bytes() -> None:
    """An H200: 989.4e12 operations/s, of which 0.67 are reached, and 4.8e12 bytes/s."""
    fused = """
fused {
  p0 = bf16[4096,4096] parameter(0)
  dot = bf16[4096,4096] dot(p0, p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT n = bf16[4096,4096] negate(dot)
}
"""
    body = """  %a = bf16[4096,4096] parameter(0)
  %dot = bf16[4096,4096] fusion(%a), kind=kCustom, calls=%fused
  ROOT %sum = bf16[4096,4096] add(%a, %dot)"""
    module = parse(program(body, before=fused))
    costs, named = Costs(module, gpu("h200")), module.entry.named
    product_ns = 2 * 4096**3 / (989.4e12 * 0.67) * 1e9
    assert costs.ns(named["dot"], module.entry) == pytest.approx(product_ns)
    assert costs.ns(named["sum"], module.entry) == pytest.approx(3 * 2 * 4096**2 / 4.8e12 * 1e9)


def trips(
    limit: str = "24",
    direction: str = "LT",
    step: str = "s32[] add(i, c)",
    by: str = "1",
    start: str = "s32[] constant(0)",
    test: str = "compare(i, n)",
    config: str = "",
) -> int | None:
    """The trip count of a loop that counts i."""
    loop = f"""
body {{
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8] get-tuple-element(s), index=1
  c = s32[] constant({by})
  next = {step}
  kept = s32[] copy(next)
  ROOT t = (s32[], f32[8]) tuple(kept, x)
}}
one_less {{
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] subtract(a, b)
}}
compared {{
  b = s32[] parameter(0)
  a = s32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT
}}
condition {{
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({limit})
  ROOT r = pred[] {test}, direction={direction}, calls=compared
}}
"""
    body = f"""  x = f32[8] parameter(0)
  zero = {start}
  s = (s32[], f32[8]) tuple(zero, x)
  ROOT w = (s32[], f32[8]) while(s), condition=condition, body=body{config}"""
    module = parse(program(body, before=loop))
    return trips_of(module.entry.named["w"], module.entry, module)


def test_trips__counted() -> None:
    assert trips() == 24
    assert trips(limit="24", direction="LE") == 25
    assert trips(limit="24", by="5") == 5
    assert trips(test="compare(n, i)", direction="GT") == 24
    assert trips(test="fusion(n, i)", direction="") == 24
    assert trips(direction="NE") == 24
    assert trips(limit="0", start="s32[] constant(10)", by="-1", direction="GT") == 10
    down = "s32[] subtract(i, c)"
    assert trips(limit="0", start="s32[] constant(10)", step=down, direction="GE") == 11
    fused = "s32[] fusion(i, c), calls=one_less"
    assert trips(limit="0", start="s32[] constant(10)", step=fused, direction="GT") == 10
    assert trips(limit="0") == 0


def test_trips__known() -> None:
    assert trips(config=', backend_config={"known_trip_count":{"n":"7"}}') == 7
    assert trips(config=', backend_config="{\\"known_trip_count\\":{\\"n\\":\\"7\\"}}"') == 7
    with pytest.raises(HloError, match="w runs 99999999999999999999 times: at most"):
        trips(config=', backend_config={"known_trip_count":{"n":"99999999999999999999"}}')


@pytest.mark.parametrize("count", ["1.5", "-3", "1e3", "many", ""])
def test_trips__that_are_no_whole_number_are_an_error(count: str) -> None:
    with pytest.raises(HloError, match=r"w has the known_trip_count .*must be a whole number"):
        trips(config=f', backend_config={{"known_trip_count":{{"n":"{count}"}}}}')


def test_trips__not_known() -> None:
    assert trips(start="s32[] parameter(1)") is None
    assert trips(step="s32[] multiply(i, c)") is None
    assert trips(by="0") is None
    assert trips(by="-1") is None
    assert trips(limit="25", by="2", direction="NE") is None
    assert trips(direction="EQ") is None
    assert trips(test="and(i, n)") is None
