"""Tests what a program communicates, hides and could hide against times worked out by hand,
and that damaged programs are refused.

The network gives 1 GB/s to each GPU and has no latency, so a byte takes 1 ns. The GPU has 1e12
operations/s and 1e12 bytes/s.
"""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.estimate.hlo_programs import ADD, LAYERS, LOOP, MIXED, program
from transport.estimate.gpus import Gpu
from transport.estimate.hlo import Collective, HloError, Program, parse, program_of, schedule
from transport.estimate.networks import Link, Network, Protocol

NETWORK = Network("flat", "test", Link(1e9, (Protocol("only", 0, 0, 1.0),)))
GPU = Gpu("test", 1e12, 1e9, 1e12, 1.0)
MIB = 1 << 20


def of(text: str, network: Network = NETWORK) -> Program:
    return program_of(parse(text), network, GPU)


def one_of(text: str, network: Network = NETWORK) -> Collective:
    (found,) = of(text, network).collectives
    return found


def nodes_of(gpus: int, inside: float = 10e9) -> Network:
    """Nodes of several GPUs, whose links inside a node are faster."""
    link = Link(inside, (Protocol("only", 0, 0, 1.0),))
    return Network("nodes", "test", NETWORK.between, gpus, link)


FOURS = "replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true"
INPUT = "  %x = f32[1024,1024] parameter(0)\n"


@pytest.mark.parametrize(
    ("instruction", "size", "sent"),
    [
        # 4 MiB in groups of four: 2 x 3/4 of it, by a ring.
        (f"f32[1024,1024] all-reduce(%x), channel_id=1, {FOURS}, to_apply=%add", 4, 6),
        (f"(f32[8], f32[8]) all-reduce(%x, %x), channel_id=1, {FOURS}, to_apply=%add", 8, 12),
        # Each gives 4 MiB, and passes on three parts of 4 MiB.
        (f"f32[4096,1024] all-gather(%x), channel_id=1, {FOURS}, dimensions={{0}}", 16, 12),
        (f"f32[256,1024] reduce-scatter(%x), channel_id=1, {FOURS}, to_apply=%add", 4, 3),
        (f"f32[1024,1024] all-to-all(%x), channel_id=1, {FOURS}, dimensions={{0}}", 4, 3),
        (f"f32[8] ragged-all-to-all(%x, %x), channel_id=1, {FOURS}", 4, 3),
        (f"f32[1024,1024] collective-broadcast(%x), channel_id=1, {FOURS}", 4, 4),
        ("f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,0}}, channel_id=1", 4, 4),
        ("f32[8] collective-permute(%x), source_target_pairs={{3,3}}, channel_id=1", 4, 0),
        ("f32[8] all-reduce(%x), channel_id=1, replica_groups=[8,1]<=[8], "
        "use_global_device_ids=true, to_apply=%add", 4, 0),
    ],
)  # fmt: skip
def test_collective__bytes(instruction: str, size: int, sent: int) -> None:
    found = one_of(program(f"{INPUT}  ROOT %y = {instruction}"))
    assert found.size_bytes == size * MIB
    assert found.sent_bytes == sent * MIB
    assert (found.hidden_ns, found.exposed_ns) == (0, found.time_ns)
    # All but broadcasts, whose last device waits for chunks, take what their bytes take.
    if found.operation != "collective-broadcast":
        assert found.time_ns == pytest.approx(sent * MIB)


def test_collective__groups_of_several_sizes_take_as_long_as_the_largest() -> None:
    groups = "replica_groups={{0},{1,2},{3,4,5,6}}, use_global_device_ids=true"
    found = one_of(program(f"{INPUT}  ROOT %y = f32[8] all-reduce(%x), channel_id=1, {groups}"))
    assert (found.ranks, found.sent_bytes) == (4, 6 * MIB)


def test_collective__nodes_that_a_group_spans() -> None:
    """Nodes of 4: fours {0,2,4,6} have two devices in each of two nodes, pairs are inside one."""
    fours = program(f"{INPUT}  ROOT %y = f32[8] all-reduce(%x), channel_id=1, {FOURS}")
    found = one_of(fours, nodes_of(4))
    # Trees send 4 MiB between two nodes, which two NICs share, and wait for a chunk of 128 KiB.
    assert found.nodes == 2
    assert found.time_ns == pytest.approx((2 + 1 / 8) * MIB)
    pairs = FOURS.replace("{{0,2,4,6},{1,3,5,7}}", "[4,2]<=[8]")
    found = one_of(fours.replace(FOURS, pairs), nodes_of(4))
    assert found.nodes == 1
    assert found.time_ns == pytest.approx(4 * MIB / 10)
    found = one_of(fours, nodes_of(8))
    assert found.nodes == 1
    assert found.time_ns == pytest.approx(6 * MIB / 10)


def test_collective__uneven_groups_have_a_note() -> None:
    groups = "replica_groups={{0,1,2,4}}, use_global_device_ids=true"
    text = program(f"{INPUT}  ROOT %y = f32[8] all-reduce(%x), channel_id=1, {groups}")
    assert any("unequal parts" in note for note in of(text, nodes_of(4)).notes)
    assert of(text, nodes_of(8)).notes == ()


def test_layers__hidden_and_exposed() -> None:
    """LAYERS: gathers of 8 MiB in fours send 24 MiB, and the sum of 32 MiB in pairs 32 MiB.

    The product takes 2 x 4096^3 operations, 137.4 ms at 1e12 a second, which hides all of the
    first gather (25.2 ms). Others are synchronous.
    """
    found = of(LAYERS)
    first, again, total = found.collectives
    product_ns = 2 * 4096**3 / 1e12 * 1e9
    assert [one.sent_bytes for one in found.collectives] == [24 * MIB, 24 * MIB, 32 * MIB]
    assert first.is_async
    assert (first.hidden_ns, first.exposed_ns) == pytest.approx((24 * MIB, 0))
    assert first.shape == "bf16[4096,4096]"
    assert (again.is_async, again.hidden_ns, again.exposed_ns) == (False, 0, 24 * MIB)
    # The product is independent of the gather, and makes the input of the sum.
    assert again.hideable_ns == pytest.approx(24 * MIB)
    assert total.hideable_ns == 0
    assert found.totals.computation_ns == pytest.approx(product_ns)
    assert found.totals.exposed_ns == pytest.approx(56 * MIB)
    assert found.totals.step_ns == pytest.approx(product_ns + 56 * MIB)
    assert found.flops == {"bf16": 2 * 4096**3}


def test_layers__the_same_gather_twice() -> None:
    """One is written by counts and one by axes; one is asynchronous and one is not."""
    (found,) = of(LAYERS).duplicates
    assert found.names == ("gather-start", "again")
    assert found.saved_bytes == 24 * MIB
    assert found.saved_ns == pytest.approx(24 * MIB)


@pytest.mark.parametrize(
    "change",
    [
        ("all-gather(%w)", "all-gather(%other)"),
        ("mesh['x'=4,'y'=2] {'x'}", "mesh['x'=2,'y'=4] {'y'}"),
        ("{'x'}, dimensions={0}", "{'x'}, dimensions={1}"),
    ],
)
def test_duplicates__of_other_data_or_groups_are_none(change: tuple[str, str]) -> None:
    other = "  %dot =", "  %other = bf16[1024,4096] negate(%w)\n  %dot ="
    assert of(LAYERS.replace(*other).replace(*change)).duplicates == ()


def test_duplicates__behind_copies() -> None:
    """Copies, tuples and barriers change no data."""
    text = program(f"""\
{INPUT}  %copy = f32[1024,1024] copy(%x)
  %pair = (f32[8], f32[1024,1024]) tuple(%x, %copy)
  %held = (f32[8], f32[1024,1024]) opt-barrier(%pair)
  %same = f32[1024,1024] get-tuple-element(%held), index=1
  %a = f32[8] all-reduce(%x), channel_id=1, {FOURS}, to_apply=%add
  %b = f32[8] all-reduce(%same), channel_id=2, to_apply=%add, \
replica_groups={{{{6,4,2,0}},{{7,5,3,1}}}}, use_global_device_ids=true
  %c = f32[8] all-reduce(%same), channel_id=3, {FOURS}, to_apply=%most
  ROOT %t = (f32[8], f32[8], f32[8]) tuple(%a, %b, %c)""", before=ADD + ADD.replace("add", "most")
    .replace("most(%a, %b)", "maximum(%a, %b)"))  # fmt: skip
    (found,) = of(text).duplicates
    assert found.names == ("a", "b")


def test_duplicates__behind_fusions_and_nested_tuples() -> None:
    """`a` sums a parameter, `b` a copy of it in a tuple; `c` sums other data."""
    found = of(MIXED)
    assert [one.names for one in found.duplicates] == [("a", "b")]
    assert sorted((one.name, one.operation, one.times) for one in found.collectives) == [
        ("a", "all-reduce", 1),
        ("b", "all-reduce", 1),
        ("c", "all-reduce", 1),
        ("moved", "collective-permute", 1),
        ("s", "reduce-scatter", 1),
        ("send", "send", 1),
        ("sum1", "reduce-scatter", 2),
    ]


def beside(start: str, done: str, costs_us: tuple[int, ...] = (2, 3)) -> Program:
    """Two products, the first of which is between a start and what waits for it."""
    # 2 x 1000 x 1000 x n operations take 2n us.
    products = "".join(
        f"  %l{at} = bf16[1000,{us // 2 or 1}] parameter({2 * at + 1})\n"
        f"  %r{at} = bf16[{us // 2 or 1},1000] parameter({2 * at + 2})\n"
        for at, us in enumerate(costs_us)
    )
    product = (
        "bf16[1000,1000] dot(%l{0}, %r{0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    return of(
        program(
            f"  %x = f32[1000] parameter(0)\n{products}  {start}\n"
            f"  %d0 = {product.format(0)}\n  {done}\n  ROOT %d1 = {product.format(1)}",
            before=ADD + WRAPPED,
        )
    )


# A sum of 4,000 bytes in fours takes 6 us.
SUM = f"all-reduce(%p), channel_id=1, {FOURS}, to_apply=%add"
WRAPPED = f"""
%wrapped (p: f32[1000]) -> f32[1000] {{
  %p = f32[1000] parameter(0)
  ROOT %inner = f32[1000] {SUM}
}}
"""
PAIR = (
    f"%s = f32[1000] all-reduce-start(%x), channel_id=1, {FOURS}, to_apply=%add",
    "%e = f32[1000] all-reduce-done(%s)",
)


@pytest.mark.parametrize(
    ("start", "done"),
    [
        PAIR,
        (
            "%s = ((f32[1000]), f32[1000], u32[]) async-start(%x), calls=%wrapped",
            "%e = f32[1000] async-done(%s), calls=%wrapped",
        ),
        (
            "%s = ((f32[1000]), f32[1000], u32[]) async-start(%x), calls=%wrapped\n"
            "  %u = ((f32[1000]), f32[1000], u32[]) async-update(%s)",
            "%e = f32[1000] async-done(%u)",
        ),
        (
            "%s = ((f32[1000]), f32[1000]) call-start(%x), to_apply=%wrapped",
            "%e = f32[1000] call-done(%s)",
        ),
    ],
)
def test_async__computation_between_start_and_done_hides(start: str, done: str) -> None:
    """Of 6 us, 4 are beside a product; the other product could be, too."""
    (found,) = beside(start, done, (4, 10)).collectives
    assert (found.name, found.operation, found.is_async) == ("s", "all-reduce", True)
    assert (found.time_ns, found.hidden_ns, found.exposed_ns) == pytest.approx((6e3, 4e3, 2e3))
    assert found.hideable_ns == pytest.approx(2e3)


def test_async__one_that_xla_runs_synchronously_is_exposed() -> None:
    start, done = PAIR
    sync = ', backend_config={"collective_backend_config":{"is_sync":true}}'
    (found,) = beside(start + sync, done, (4, 10)).collectives
    assert (found.is_async, found.shape) == (False, "f32[1000]")
    assert found.exposed_ns == pytest.approx(6e3)


def test_async__in_a_fusion_is_exposed() -> None:
    (found,) = beside(
        "%s = f32[1000] fusion(%x), calls=%wrapped", "%e = f32[] negate(%x)"
    ).collectives
    assert (found.name, found.is_async) == ("s", False)
    assert found.exposed_ns == pytest.approx(6e3)


def test_async__without_an_end_is_not_judged() -> None:
    found = beside(PAIR[0], "%e = f32[] negate(%x)")
    (one,) = found.collectives
    assert (one.hidden_ns, one.exposed_ns, one.hideable_ns) == (None, None, None)
    assert found.totals.not_judged_ns == pytest.approx(6e3)
    assert found.totals.exposed_ns == 0
    assert any(note.startswith("?: not judged") for note in found.notes)


def test_async__collectives_run_one_after_the_other() -> None:
    """Two of 6 us start together beside a product of 8 us: the second is exposed for 4."""
    second = PAIR[0].replace("%s", "%s2"), PAIR[1].replace("%s", "%s2").replace("%e", "%e2")
    found = beside(f"{PAIR[0]}\n  {second[0]}", f"{PAIR[1]}\n  {second[1]}", (8, 2))
    one, other = found.collectives
    assert (one.hidden_ns, one.exposed_ns) == pytest.approx((6e3, 0))
    assert (other.hidden_ns, other.exposed_ns) == pytest.approx((2e3, 4e3))
    assert found.totals.step_ns == pytest.approx(14e3, rel=1e-2)
    # If computation first waits for the second, what it waits for is the same.
    found = beside(f"{PAIR[0]}\n  {second[0]}", f"{second[1]}\n  {PAIR[1]}", (8, 2))
    assert found.totals.exposed_ns == pytest.approx(4e3)


def test_send__ends_where_its_data_is_waited_for() -> None:
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2}}"}'
    found = beside(
        f"%none = token[] after-all()\n  %r = (f32[1000], u32[], token[]) recv(%none), "
        f"channel_id=7, {pairs}\n  %s = (f32[1000], u32[], token[]) send(%x, %none), "
        f"channel_id=7, {pairs}",
        "%rd = (f32[1000], token[]) recv-done(%r), channel_id=7\n"
        "  %sd = token[] send-done(%s), channel_id=7",
        (2, 2),
    )
    (one,) = found.collectives
    assert (one.operation, one.groups, one.sent_bytes) == ("send", ((0, 1), (1, 2)), 4000)
    # The product of 2 us writes and reads for 2.004 us.
    assert (one.hidden_ns, one.exposed_ns) == pytest.approx((2004, 1996))


def test_loop__counts_each_iteration() -> None:
    """24 sums of 4 KiB in fours."""
    found = of(LOOP)
    (one,) = found.collectives
    assert (one.computation, one.times) == ("body", 24)
    assert one.time_ns == pytest.approx(6144)
    assert found.totals.exposed_ns == pytest.approx(24 * 6144)
    assert found.notes == ()


def test_loop__by_its_condition_or_once() -> None:
    without = LOOP.replace(', backend_config={"known_trip_count":{"n":"24"}}', "")
    assert one_of(without).times == 10
    unknown = of(without.replace("%zero = s32[] constant(0)", "%zero = s32[] parameter(1)"))
    assert unknown.collectives[0].times == 1
    assert unknown.notes == ("trip count unknown: counted once: loop",)


def test_calls__branches_count_as_the_largest() -> None:
    text = program(
        f"""\
{INPUT}  %p = pred[] parameter(1)
  %c = f32[8] conditional(%p, %x, %x), true_computation=%few, false_computation=%many
  ROOT %d = f32[8] call(%c), to_apply=%few""",
        before=ADD + "".join(f"""
%{name} {{
  %y = f32[{size},1024] parameter(0)
  ROOT %s = f32[8] all-reduce(%y), channel_id=1, {FOURS}, to_apply=%add
}}""" for name, size in (("few", 8), ("many", 1024))),
    )  # fmt: skip
    found = of(text)
    assert [(one.computation, one.times) for one in found.collectives] == [("few", 1), ("many", 1)]
    assert found.notes == ("counted with the largest branch: c (many)",)
    branches = "branch_computations={%few, %many}"
    other = text.replace("true_computation=%few, false_computation=%many", branches)
    assert of(other).collectives == found.collectives


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            program("  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] call(%x), to_apply=%main"),
            "deep",
        ),
        (program("  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] fusion(%x), calls=%main"), "deep"),
        (program("  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] fusion(%x)"), "no computation"),
        (program("  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] call(%x), to_apply=%no"), "no, "),
        (LOOP.replace('"24"', f'"{1 << 70}"'), "at most 2^62"),
    ],
)
def test_program__errors(text: str, says: str) -> None:
    with pytest.raises(HloError) as error:
        of(text)
    assert says in str(error.value)


def test_program__loops_in_loops_that_run_too_often() -> None:
    """2^40 times 2^40 iterations."""
    count = f'backend_config={{"known_trip_count":{{"n":"{1 << 40}"}}}}'
    loops = "".join(f"""
%c{at} {{
  %y = f32[8] parameter(0)
  ROOT %w{at} = f32[8] while(%y), condition=%c{at - 1}, body=%c{at - 1}, {count}
}}""" for at in (1, 2))  # fmt: skip
    first = "\n%c0 {\n  %y = f32[8] parameter(0)\n  ROOT %n = f32[8] negate(%y)\n}"
    text = program(
        "  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] call(%x), to_apply=%c2",
        before=ADD + first + loops,
    )
    with pytest.raises(HloError, match="w2 runs a part more than 2"):
        of(text)


def test_program__many_nested_calls_take_no_time() -> None:
    """Each computation calls the one before twice: 2^50 sums, counted and not walked."""
    each = "".join(f"""
%c{at} {{
  %y = f32[8] parameter(0)
  %a = f32[8] call(%y), to_apply=%c{at - 1}
  ROOT %b = f32[8] call(%a), to_apply=%c{at - 1}
}}""" for at in range(1, 51))  # fmt: skip
    first = f"\n%c0 {{\n  %y = f32[8] parameter(0)\n  ROOT %s = f32[8] all-reduce(%y), {FOURS}\n}}"
    text = program(
        "  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] call(%x), to_apply=%c50",
        before=ADD + first + each,
    )
    assert one_of(text).times == 1 << 50


def test_program__too_large_to_relate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "PAIRS_MAX", 8)
    found = of(LAYERS)
    assert [one.hideable_ns for one in found.collectives] == [None, None, None]
    assert found.totals.hideable_ns is None
    assert found.notes == ("too large to say what another order could hide: main",)


def test_program__counts_products_that_it_does_not_understand() -> None:
    """Their FLOPs are missing; the one that is understood has 2 x 1,024^3."""
    dot = "f32[1024,1024] dot(%x, %x), lhs_contracting_dims"
    text = program(f"""\
{INPUT}  %good = {dot}={{1}}, rhs_contracting_dims={{0}}
  %far = {dot}={{2}}, rhs_contracting_dims={{0}}
  %twice = {dot}={{1,1}}, rhs_contracting_dims={{0,1}}
  %conv = f32[4,4] convolution(%x, %x), dim_labels=none
  ROOT %minus = {dot}={{-1}}, rhs_contracting_dims={{0}}""")
    found = of(text)
    assert found.flops == {"f32": 2 * 1024**3}
    (note,) = [one for one in found.notes if "not understood" in one]
    assert note.startswith("1 convolution, 3 dots not understood")
    assert note.endswith("their FLOPs are missing: conv, far, minus, twice")


def test_program__notes() -> None:
    text = program(
        f"""\
{INPUT}  %dot = f32[1024,1024] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %mine = f32[8] custom-call(%dot), custom_call_target="mine"
  ROOT %y = f32[8] ragged-all-to-all(%dot, %x), replica_groups={{{{0,1}}}}""",
        header="x=1",
    ).replace("is_scheduled=true, ", "")
    said = " ".join(of(text).notes)
    for expected in ("not scheduled", "names one device: 2 by", "ragged-all-to-all", ": mine"):
        assert expected in said
    assert "100 % of FLOPs are of 32 bits" in said
    narrow = LAYERS.replace("bf16[4096,4096]{1,0} parameter", "f8e4m3fn[4096,4096]{1,0} parameter")
    assert any("100 % of FLOPs are of 8 bits" in note for note in of(narrow).notes)
    promoted = LAYERS.replace("%add ", "%add_promoted ").replace("=%add\n", "=%add_promoted\n")
    assert any("compiled for the CPU" in note for note in of(promoted).notes)
    assert not any("compiled for the CPU" in note for note in of(LAYERS).notes)
    partitioned = LAYERS.replace(
        "rhs_contracting_dims={0}\n",
        'rhs_contracting_dims={0}, backend_config={"outer_dimension_partitions":["2"]}\n',
    )
    assert partitioned != LAYERS
    (note,) = (one for one in of(partitioned).notes if "CPU" in one)
    assert "reduce-scatters" in note
    assert "get_topology_desc" in note


def test_program__without_collectives(tmp_path: Path) -> None:
    found = of(program(f"{INPUT}  ROOT %y = f32[1024,1024] negate(%x)"))
    assert found.collectives == ()
    assert found.totals.step_ns == pytest.approx(8 * MIB / 1e3)


PIECES = (
    *("{", "}", "(", ")", "[", "]", '"', "\\", ",", "=", "%", "\n", "/*", "*/", "//", "ROOT "),
    *("ENTRY ", "%main", "%add", "%body", "body", "-1", "0", "9" * 25, "{}", "{{}}", "{{0,1}}"),
    *("all-reduce(", "while(", "fusion(%x), calls=%main", "[2,4]<=[8]", "T(1,0)", "T(0,0)"),
    *("mesh['x'=4] {'x'}", "'x':(2)2", "f32[8]", "token[]", "replica_groups=", "é", "\x00"),
)


@given(st.data())
def test_program__damaged_ones_are_read_or_refused(data: st.DataObject) -> None:
    """Pieces of a program are removed, repeated or replaced; nothing but HloError may come."""
    damaged = data.draw(st.sampled_from((LAYERS, LOOP, MIXED)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        end = at + data.draw(st.integers(0, 30))
        put = data.draw(st.sampled_from(("", damaged[at:end] * 2, *PIECES)))
        damaged = damaged[:at] + put + damaged[end:]
    said, exposed_ns = "", 0.0
    try:
        found = of(damaged)
        exposed_ns = found.totals.exposed_ns
    except HloError as error:
        said = str(error)
    assert "\n" not in said
    assert exposed_ns >= 0
