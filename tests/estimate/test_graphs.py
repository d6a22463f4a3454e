"""Tests graphs of PyTorch and traces of Chakra against counts by hand, and bad ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.graph_texts import STEP, TRAINING, chakra, chakra_json, graph, write
from transport.estimate.collectives import estimate
from transport.estimate.gpus import Gpu
from transport.estimate.graphs import Members, members_of, read
from transport.estimate.hlo import HloError, Program, program_of
from transport.estimate.hlo.costs import Costs
from transport.estimate.networks import of_links

NETWORK = of_links("ethernet-400", "nvlink4", 4)
GPU = Gpu("test", 1e12, 80e9, 1e12, efficiency=1.0)  # an operation a ps, a byte a ps
MIB = 1 << 20


def program(tmp_path: Path, content: str | bytes, devices: int | None = 8) -> Program:
    module, _ = read(write(tmp_path, "step", content), Members(devices))
    return program_of(module, NETWORK, GPU)


def flops(tmp_path: Path, *lines: str, inputs: str) -> int:
    module, _ = read(write(tmp_path, "step", graph(inputs, *lines)), Members())
    costs = Costs(module, GPU)
    every = [costs.flops(one, module.entry) for one in module.entry.instructions]
    return sum(sum(each.values()) for each in every)


def moved(tmp_path: Path, line: str, inputs: str = 'x: "f32[4, 8]"') -> int:
    module, _ = read(write(tmp_path, "step", graph(inputs, line)), Members())
    last = module.entry.instructions[-1]
    return Costs(module, GPU).moved_bytes(last, module.entry)


def test_fx__collectives_by_hand(tmp_path: Path) -> None:
    """A gather passes on 7 parts of 4 MiB; a scatter of 32 MiB among four sends 3/4 of it."""
    found = program(tmp_path, STEP)
    gather, again, scatter = found.collectives
    assert (gather.operation, gather.shape) == ("all-gather", "bf16[4096,4096]")
    assert (gather.sent_bytes, gather.size_bytes) == (28 * MIB, 32 * MIB)
    assert gather.groups == (tuple(range(8)),)
    assert (gather.ranks, gather.nodes, gather.is_async) == (8, 2, True)
    expected = estimate(NETWORK, "all_gather", 32 * MIB, 8, nodes=2)
    assert gather.time_ns == again.time_ns == expected.time_ns
    assert (scatter.operation, scatter.sent_bytes) == ("reduce-scatter", 24 * MIB)
    assert scatter.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (scatter.nodes, found.devices, found.nodes) == (1, 8, 2)


def test_fx__what_computation_hides(tmp_path: Path) -> None:
    """The product takes 2 x 4096^3 ps, longer than the first gather; nothing is left to hide."""
    found = program(tmp_path, STEP)
    gather, again, scatter = found.collectives
    assert found.flops == {"bf16": 2 * 4_096**3}
    assert found.totals.computation_ns == pytest.approx(2 * 4_096**3 / 1e3)
    assert gather.exposed_ns == 0
    assert again.exposed_ns == pytest.approx(again.time_ns)
    assert again.hideable_ns == again.exposed_ns  # it neither needs the product nor makes its input
    assert scatter.hideable_ns == 0
    (same,) = found.duplicates
    assert (same.names, same.saved_bytes) == (("gather", "again"), 28 * MIB)


def test_fx__other_reductions_are_no_duplicates(tmp_path: Path) -> None:
    reduce = 'torch.ops._c10d_functional.all_reduce.default(x, "{}", "0")'
    lines = [f'r{at}: "f32[8]" = {reduce.format(kind)}' for at, kind in enumerate(("sum", "max"))]
    assert not program(tmp_path, graph('x: "f32[8]"', *lines)).duplicates
    lines = [f'r{at}: "f32[8]" = {reduce.format("sum")}' for at in range(2)]
    assert len(program(tmp_path, graph('x: "f32[8]"', *lines)).duplicates) == 1


def test_fx__data_changed_in_place_is_other_data(tmp_path: Path) -> None:
    reduce = 'torch.ops._c10d_functional.all_reduce.default(x, "sum", "0")'
    lines = (
        f'one: "f32[8]" = {reduce}',
        'add_: "f32[8]" = torch.ops.aten.add_.Tensor(x, 1)',
        f'two: "f32[8]" = {reduce}',
    )
    assert not program(tmp_path, graph('x: "f32[8]"', *lines)).duplicates


def test_fx__several_tensors_at_once(tmp_path: Path) -> None:
    """The first one that is waited for ends all: 2 x 7/8 of 64 + 32 bytes."""
    lines = (
        'r = torch.ops._c10d_functional.all_reduce_coalesced.default([x, y], "avg", "0")',
        'a: "f32[16]" = r[0]',
        'b: "f32[8]" = r[1];  r = None',
        'wa: "f32[16]" = torch.ops._c10d_functional.wait_tensor.default(a)',
        'wb: "f32[8]" = torch.ops._c10d_functional.wait_tensor.default(b)',
        'c: "f32[8]" = torch.ops.aten.neg.default(wb)',
    )
    (one,) = program(tmp_path, graph('x: "f32[16]", y: "f32[8]"', *lines)).collectives
    assert (one.size_bytes, one.sent_bytes) == (96, 168)
    assert one.exposed_ns == one.time_ns
    assert one.shape == "(f32[16], f32[8])"


def test_fx__in_place_collectives_and_lists_of_ranks(tmp_path: Path) -> None:
    lines = (
        'r: "f32[8]" = torch.ops._c10d_functional.all_reduce_.default(x, "sum", "0")',
        'w: "f32[8]" = torch.ops._c10d_functional.wait_tensor.default(x)',
        'o: "f32[8]" = torch.ops.c10d_functional.all_reduce.default(w, "sum", "", [1, 5], 2)',
        'v: "f32[8]" = torch.ops.c10d_functional.wait_tensor.default(o)',
    )
    first, second = program(tmp_path, graph('x: "f32[8]"', *lines)).collectives
    assert first.exposed_ns == first.time_ns
    assert second.groups == ((1, 5),)


def test_fx__what_waits_outside_of_the_graph_is_not_judged(tmp_path: Path) -> None:
    line = 'r: "f32[8]" = torch.ops._c10d_functional.all_reduce.default(x, "sum", "0")'
    found = program(tmp_path, graph('x: "f32[8]"', line))
    assert found.collectives[0].exposed_ns is None
    assert found.totals.not_judged_ns > 0
    assert any("no instruction" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "inputs", "count"),
    [
        ("addmm.default(b, x, w)", 'b: "f32[4]", x: "f32[2, 3]", w: "f32[3, 4]"', 2 * 2 * 3 * 4),
        ("bmm.default(x, x)", 'x: "f32[2, 4, 4]"', 2 * 2 * 4 * 4 * 4),
        ("linear.default(x, w)", 'x: "f32[2, 3]", w: "f32[4, 3]"', 2 * 2 * 3 * 4),
        ("mul.Tensor(x, x)", 'x: "f32[2, 4]"', 0),
    ],
)
def test_fx__products(tmp_path: Path, line: str, inputs: str, count: int) -> None:
    result = '"f32[2, 4, 4]"' if "bmm" in line else '"f32[2, 4]"'
    assert flops(tmp_path, f"y: {result} = torch.ops.aten.{line}", inputs=inputs) == count


def test_fx__convolutions(tmp_path: Path) -> None:
    """Two for each of 2 x 8 x 6 x 6 outputs and 3 x 3 x 3 weights; backward: both gradients."""
    inputs = 'x: "f32[2, 3, 8, 8]", w: "f32[8, 3, 3, 3]"'
    rest = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1"
    forward = f'y: "f32[2, 8, 6, 6]" = torch.ops.aten.convolution.default(x, w, None, {rest})'
    count = 2 * 2 * 8 * 36 * 27
    assert flops(tmp_path, forward, inputs=inputs) == count
    end = f"None, {rest}, [True, True, False]"
    backward = f"g = torch.ops.aten.convolution_backward.default(y, x, w, {end})"
    assert flops(tmp_path, forward, backward, inputs=inputs) == 3 * count


def test_fx__attention(tmp_path: Path) -> None:
    """4 x 16 x 16 x 8 for each of 2 x 4 heads; with a causal mask half; backward 2.5 times."""
    inputs = 'q: "bf16[2, 4, 16, 8]"'
    whole = 2 * 4 * 4 * 16 * 16 * 8
    name = "_scaled_dot_product_flash_attention"
    plain = f"torch.ops.aten.{name}.default(q, q, q)"
    assert flops(tmp_path, f"a = {plain}", inputs=inputs) == whole
    causal = f"torch.ops.aten.{name}.default(q, q, q, 0.0, True, scale = 0.125)"
    assert flops(tmp_path, f"a = {causal}", inputs=inputs) == whole / 2
    back = (
        f"torch.ops.aten.{name}_backward.default(q, q, q, q, q, q, None, None, 16, 16, 0.0, True)"
    )
    assert flops(tmp_path, f"a = {back}", inputs=inputs) == 2.5 * whole / 2
    named = "torch.ops.aten.scaled_dot_product_attention.default(q, q, q, is_causal = True)"
    assert flops(tmp_path, f'a: "bf16[2, 4, 16, 8]" = {named}', inputs=inputs) == whole / 2


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ('y: "f32[8, 4]" = torch.ops.aten.t.default(x)', 0),
        ('y: "f32[4, 8]" = torch.ops.aten.add.Tensor(x, x)', 3 * 128),
        ('y: "f32[2, 8]" = torch.ops.aten.index.Tensor(x, [x])', 2 * 64),
        ('y: "b8[4, 8]" = torch.ops.aten.gt.Scalar(x, 0)', 128 + 32),
        ('y: "i64[4, 8]" = torch.ops.aten._to_copy.default(x, dtype = torch.int64)', 128 + 256),
        ('y: "f32[4, 8]" = torch.ops.mine.fancy.default(x)', 256),
    ],
)
def test_fx__bytes(tmp_path: Path, line: str, count: int) -> None:
    assert moved(tmp_path, line) == count


def test_fx__unknown_operations_are_named(tmp_path: Path) -> None:
    lines = (
        'y: "f32[4]" = torch.ops.mine.fancy.default(x)',
        'z: "f32[4]" = torch.ops.c10d.send.default(x)',
    )
    module, notes = read(write(tmp_path, "a", graph('x: "f32[4]"', *lines)), Members())
    assert "communication that is not judged: c10d.send" in notes
    found = program_of(module, NETWORK, GPU)
    assert any("mine.fancy" in note for note in found.notes)


def test_fx__prefixes_of_logs_scalars_and_repeated_inputs(tmp_path: Path) -> None:
    lines = (
        "class GraphModule(torch.nn.Module):",
        "    def forward(self, x, s0):",
        '        x: "f32[64][1]cuda:0"; s0: "Sym(8)"; ',
        "",
        "        x, = fx_pytree.tree_flatten_spec(([x], {}), self._in_spec)",
        "        size = s0 * 2;  s0 = None",
        "        neg: f32[64] = torch.ops.aten.neg.default(x);  x = None",
        "        return pytree.tree_unflatten((neg,), self._out_spec)",
    )
    place = "torch/_functorch/_aot_autograd/jit_compile_runtime_wrappers.py:1508"
    prefix = f"[rank0]:I1130 03:10:06.393000 4711 {place}] [0/0] [__aot_graphs] "
    text = "".join(f"{prefix}{line}\n" for line in lines)
    assert program(tmp_path, text).totals.computation_ns == pytest.approx(2 * 256 / 1e3)


def test_fx__one_of_several_graphs(tmp_path: Path) -> None:
    """Subgraphs stand inside of their graph, farther to the right."""
    head = "    class true_graph_0(torch.nn.Module):\n        def forward(self, x):\n"
    inner = f"{head}            return ()\n"
    text = STEP + inner + graph('x: "f32[64]"', 'y: "f32[64]" = torch.ops.aten.neg.default(x)')
    file = write(tmp_path, "step", text)
    for number, count in ((1, 3), (2, 0)):
        module, notes = read(file, Members(8), number)
        assert len(program_of(module, NETWORK, GPU).collectives) == count
        assert ("subgraphs of the graph are not judged" in notes) == (number == 1)
    with pytest.raises(HloError, match="--graph 3: the text has 2 graphs"):
        read(file, Members(8), 3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("hello", "no line begins with def forward("),
        (
            "graph():\n    %x : [num_users=1] = placeholder[target=x]\n",
            "print(graph) has no shapes",
        ),
        ("HloModule m\n", "is HLO text: weft estimate hlo"),
        (STEP[:700], "expected a node of a graph"),
        (STEP.replace("        return", "        # return"), "ends without return"),
        (STEP + STEP, "2 graphs, at lines 2, 13: --graph 1 takes the first"),
        (STEP.replace("4096, 4096]", "s0, 4096]"), "has the shape bf16[s0, 4096]"),
        (STEP.replace("bf16[512", "bf17[512"), "unknown element type bf17"),
        (STEP.replace("bf16[512, ", f"bf16[{'9' * 19}, "), "or 2^62 elements"),
        (STEP.replace("(w, 8, '0')", "(w, 8)"), "has no name of a process group"),
        (STEP.replace("(w, 8, '0')", "(w, 9, '0')"), "needs 9 devices, and --devices is 8"),
        (STEP.replace("(w, 8, '0')", "(w, 10**9, '0')"), "a group of None ranks"),
        (STEP.replace("(w, 8, '0');", "(w, 4, '0');"), "has 4 ranks here and 8 elsewhere"),
        (STEP.replace("mm.default(x, x)", "mm.default(x, y)"), "operand y is not defined"),
        (STEP.replace("torch.ops.aten.mm.default", "torch.mm"), "torch.mm is no operation of ATen"),
        (STEP.replace('x: "bf16[4096, 4096]"', "x"), "needs the shapes"),
        (graph("x", "y = " + "(" * 50_000), "expected a node of a graph"),
        (b"\xff\xfe text", "is no text"),
    ],
)
def test_fx__bad_texts(tmp_path: Path, content: str | bytes, says: str) -> None:
    with pytest.raises(HloError) as caught:
        program(tmp_path, content)
    assert says in str(caught.value)


def test_members__groups_of_a_file_and_by_size(tmp_path: Path) -> None:
    file = write(tmp_path, "groups.json", json.dumps({"0": [0, 1], "1": [[0, 4], [1, 5]]}))
    found = members_of(file, None)
    assert (found.text("0", ""), found.text("1", "")) == ("{{0,1}}", "{{0,4},{1,5}}")
    assert found.devices == 6
    with pytest.raises(HloError, match="the ranks of group '2' are not known: give --groups"):
        found.text("2", "line 1")
    assert not found.notes
    sized = Members(8)
    sized.sized("5", 2, "")
    assert sized.text("5", "") == "{{0,1},{2,3},{4,5},{6,7}}"
    assert sized.text("6", "") == "{{0,1,2,3,4,5,6,7}}"
    assert len(sized.notes) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[1]", "expected {"),
        ('{"0": 1}', "expected different ranks"),
        ('{"0": []}', "expected different ranks"),
        ('{"0": [0, 0]}', "expected different ranks"),
        ('{"0": [true]}', "expected different ranks"),
        ('{"0": [-1]}', "expected different ranks"),
        ('{"0": [99999999]}', "expected different ranks"),
        ('{"0": [[0], 1]}', "expected different ranks"),
    ],
)
def test_members__bad_files(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(HloError) as caught:
        members_of(write(tmp_path, "groups.json", content), None)
    assert says in str(caught.value)


def test_members__more_ranks_than_devices(tmp_path: Path) -> None:
    file = write(tmp_path, "groups.json", '{"0": [0, 9]}')
    with pytest.raises(HloError, match="group 0 needs 10 devices, and --devices is 8"):
        members_of(file, 8)


@pytest.mark.parametrize("form", [chakra, chakra_json])
def test_chakra__a_step_by_hand(tmp_path: Path, form: Any) -> None:
    """16 MiB among 8; 50 us of backward hide a part; the update takes 1e9 operations, 1 ms."""
    found = program(tmp_path, form(*TRAINING))
    (one,) = found.collectives
    assert (one.name, one.operation) == ("reduce.3", "all-reduce")
    assert (one.size_bytes, one.sent_bytes) == (16 * MIB, 28 * MIB)
    expected = estimate(NETWORK, "all_reduce", 16 * MIB, 8, nodes=2)
    assert one.time_ns == expected.time_ns > 50_000
    assert one.hidden_ns == pytest.approx(50_000)
    assert one.exposed_ns == pytest.approx(expected.time_ns - 50_000)
    assert one.hideable_ns == 0  # all else is before or behind it
    assert found.totals.computation_ns == 350_000 + 1_000_000
    assert found.flops == {"bf16": 10**9}


def test_chakra__equal_sizes_are_no_duplicates_and_the_last_is_waited_for(tmp_path: Path) -> None:
    more = (TRAINING[2] | {"id": 6, "needs": [5]}, TRAINING[2] | {"id": 7, "needs": [5]})
    found = program(tmp_path, chakra(*TRAINING, *more))
    assert not found.duplicates
    last = found.collectives[-1]
    assert last.exposed_ns == pytest.approx(last.time_ns)
    assert found.totals.not_judged_ns == 0


def test_chakra__ids_are_the_order_and_dependencies_come_first(tmp_path: Path) -> None:
    nodes = (
        {"id": 9, "type": 4, "us": 3},
        {"id": 2, "type": 4, "us": 1, "needs": [9]},
        {"id": 1, "type": 4, "us": 2},
    )
    module, _ = read(write(tmp_path, "a", chakra(*nodes)), Members())
    assert [one.name for one in module.entry.instructions] == ["node.1", "node.9", "node.2"]


def test_chakra__messages_and_what_is_left_out(tmp_path: Path) -> None:
    nodes = (
        {"id": 1, "type": 5, "comm_src": 0, "comm_dst": 9, "comm_size": 1_000},
        {"id": 2, "type": 5, "comm_src": 0, "comm_size": 1_000},
        {"id": 3, "type": 7, "comm_type": 9, "comm_size": 0},
        {"id": 4, "type": 4},
        {"id": 5, "type": 4, "us": 70, "is_cpu_op": 1, "needs": [77]},
    )
    module, notes = read(write(tmp_path, "a", chakra(*nodes)), Members())
    found = program_of(module, NETWORK, GPU)
    (one,) = found.collectives
    assert (one.operation, one.groups) == ("collective-permute", ((0, 9),))
    assert (one.sent_bytes, one.nodes, found.devices) == (1_000, 2, 10)
    assert found.totals.computation_ns == 0
    text = "\n".join(notes)
    for said in (
        *("1 Barrier", "1 messages whose two ranks", "1 dependencies are on nodes"),
        "computation of 1 nodes is not known",
    ):
        assert said in text


def test_chakra__the_name_of_the_file_is_an_end_of_messages(tmp_path: Path) -> None:
    """As ASTRA-sim's custom collectives are: a Send has comm_dst only, a Recv comm_src only."""
    nodes = (
        {"id": 0, "type": 5, "comm_dst": 2, "comm_size": 100},
        {"id": 1, "type": 6, "comm_src": 0, "comm_size": 100, "needs": [0]},
    )
    module, notes = read(write(tmp_path, "ring.1.et", chakra(*nodes)), Members(8))
    found = program_of(module, NETWORK, GPU)
    assert [one.groups for one in found.collectives] == [((1, 2),), ((0, 1),)]
    assert not any("not judged" in note for note in notes)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([], "has no nodes"),
        ([{"id": 1, "type": 4, "needs": [2]}, {"id": 2, "type": 4, "needs": [1]}], "cycle: 1, 2"),
        ([{"id": 1, "type": 4, "needs": [1]}], "cycle: 1"),
        ([{"id": 1, "type": 4}, {"id": 1, "type": 4}], "a second node 1"),
        ([{"id": 1, "type": 7, "comm_type": 0}], "node 1 has no comm_size"),
        ([TRAINING[2] | {"comm_size": "big"}], "node 3: comm_size is big"),
        ([TRAINING[2] | {"comm_size": 1 << 63}], "comm_size is a number out of range"),
        ([{"id": 1, "type": 4, "us": 1 << 60}], "node 1 takes"),
        (
            [{"id": 1, "type": 5, "comm_src": 0, "comm_dst": 1 << 40, "comm_size": 1}],
            "node 1: a rank of",
        ),
    ],
)
def test_chakra__bad_nodes(tmp_path: Path, nodes: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(HloError) as caught:
        program(tmp_path, chakra(*nodes))
    assert says in str(caught.value)


def test_chakra__ranks_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(HloError, match="node 3: the ranks of group '0' are not known"):
        program(tmp_path, chakra(*TRAINING), devices=None)


@pytest.mark.parametrize("end", [-1, -20, 3])
def test_chakra__truncated_files(tmp_path: Path, end: int) -> None:
    with pytest.raises(HloError, match="is no execution trace of Chakra, or damaged"):
        program(tmp_path, chakra(*TRAINING)[:end])
    with pytest.raises(HloError):
        program(tmp_path, chakra_json(*TRAINING)[:end])
