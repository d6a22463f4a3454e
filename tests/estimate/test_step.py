"""Tests steps of training: schedules by hand, pipelines' bubbles, models' published sizes."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from transport.estimate.activations import attention_share
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import Gpu, gpu
from transport.estimate.memory import memory_of
from transport.estimate.models import PRESETS, Model
from transport.estimate.networks import Link, Network, Protocol, of_links
from transport.estimate.pipelines import in_flight, order
from transport.estimate.plan import Plan, PlanError
from transport.estimate.schedule import run
from transport.estimate.step import Step
from transport.estimate.times import difference_ns
from transport.estimate.training import train

SMALL = Model("small", 8, 1_024, 16, 4_096, 1_000, 512)
GPU = Gpu("test", 1e12, 80e9, 1e15, 1.0)


def network(rate: float = 1e9, step_ns: float = 0.0, gpus_per_node: int = 1) -> Network:
    """Links inside nodes are as those between them."""
    link = Link(rate, (Protocol("only", 0.0, step_ns, 1.0),))
    inside = link if gpus_per_node > 1 else None
    return Network("test", "test", link, gpus_per_node, inside)


def test_difference_ns__is_zero_if_times_differ_by_rounding() -> None:
    assert 0.1 + 0.2 != 0.3
    assert difference_ns(1e9 * (0.1 + 0.2), 1e9 * 0.3) == 0.0
    assert difference_ns(3.0, 1.0) == 2.0
    assert difference_ns(1e9 + 10, 1e9) == 10.0


def test_train__one_stage_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where sum() has no rounding error, as in Python 3.12, and the schedule's clock has."""
    monkeypatch.setattr("transport.estimate.training.sum", math.fsum, raising=False)
    found = train(PRESETS["gpt2-xl"], Plan(data=64, global_batch=64), GPU, network())
    assert found.bubble_ns == 0.0
    assert found.host_ns == 0.0


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt2-xl", 1.56),
        ("bert-large", 0.34),
        ("megatron-18b", 18.4),
        ("megatron-145b", 145.6),
        ("megatron-1t", 1008.0),
        ("gpt3-175b", 174.6),
        ("llama2-7b", 6.74),
        ("llama2-70b", 69.0),
        ("llama3-8b", 8.03),
        ("llama3-405b", 405.9),
        ("mixtral-8x7b", 46.7),
        ("deepseek-v3", 671.0),
    ],
)
def test_models__have_the_published_number_of_parameters(name: str, billions: float) -> None:
    assert PRESETS[name].parameters / 1e9 == pytest.approx(billions, rel=0.03)


def test_models__operations_are_those_of_narayanan() -> None:
    """96 B s l h^2 (1 + s / 6h + V / 16 l h), with recomputation (SC 2021, equation 3)."""
    model = PRESETS["gpt3-175b"]
    batch, s, h, layers = 1_536, model.sequence, model.hidden, model.layers
    flops = 96.0 * batch * s * layers * h**2
    flops *= 1 + s / (6 * h) + model.vocabulary / (16 * layers * h)
    assert model.step_flops(batch * s, recomputes=True) == pytest.approx(flops, rel=1e-9)


def test_train__stages_of_one_node_send_over_its_links() -> None:
    """Stages of two GPUs: of three sends forward, those between stages 1 and 2 leave the node."""
    model = replace(PRESETS["gpt2"], layers=4)
    plan = Plan(tensor=2, pipeline=4)
    network = of_links("ethernet-100", "nvlink4", 4)
    step = Step(model, plan, of_gpu(model, plan, gpu("h100")), network)
    between = {
        task.name: task.sent.terms.between_bytes
        for task in step.build()
        if task.sent is not None and task.name.startswith("forward")
    }
    size = model.sequence * model.hidden * 2
    assert between == {
        "forward 1.0 from 0": 0,
        "forward 2.0 from 1": size,
        "forward 3.0 from 2": 0,
    }


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (4, 4), (4, 16), (8, 8), (2, 7)])
def test_pipeline__the_bubble_is_that_of_one_forward_one_backward(
    stages: int, batches: int
) -> None:
    """(p - 1) forward and backward passes of a stage, whatever the number of microbatches."""
    model = Model("equal", 8, 1_024, 16, 4_096, 1, 512, tied=True)
    plan = Plan(pipeline=stages, global_batch=batches)
    found = train(model, plan, GPU, network(1e18))
    one_ns = 3 * model.layers / stages * GPU.ns(model.layer_flops(512))
    assert found.compute_ns == pytest.approx(batches * one_ns, rel=1e-3)
    assert found.bubble_ns == pytest.approx((stages - 1) * one_ns, rel=1e-3)


EQUAL = Model("equal", 16, 1_024, 16, 4_096, 1, 512, tied=True)
# Its layers: 24 h^2 operations for each token have parameters, 4 s h = 2 h^2 of attention have not.
# A stage's W is 24/26 of F, and B is 2 F.
WEIGHTS_OF_FORWARD = 24 / 26


@pytest.mark.parametrize(("stages", "batches"), [(2, 2), (4, 4), (4, 22), (8, 16)])
def test_pipeline__the_bubble_of_zero_bubble_hides_the_gradients_of_parameters(
    stages: int, batches: int
) -> None:
    """(p - 1) (F + B - 2 W), while as many microbatches are in flight as in 1F1B."""
    plan = Plan(pipeline=stages, global_batch=batches, schedule="zero-bubble")
    found = train(EQUAL, plan, GPU, network(1e18))
    one_ns = EQUAL.layers / stages * GPU.ns(EQUAL.layer_flops(512))
    expected = (stages - 1) * (1 + 2 - 2 * WEIGHTS_OF_FORWARD) * one_ns
    assert found.bubble_ns == pytest.approx(expected, rel=1e-3)
    assert found.compute_ns == pytest.approx(batches * 3 * one_ns, rel=1e-3)
    assert [in_flight(plan, stage) for stage in range(stages)] == [min(stages, batches)] * stages


@pytest.mark.parametrize(("stages", "batches"), [(4, 8), (8, 20)])
def test_pipeline__the_bubble_of_dualpipe(stages: int, batches: int) -> None:
    """(p / 2 - 1) (F&B + B - 3 W), twice the parameters, p + 1 microbatches in flight."""
    plan = Plan(pipeline=stages, global_batch=batches, schedule="dualpipe")
    found = train(EQUAL, plan, GPU, network(1e18))
    one_ns = EQUAL.layers / stages * GPU.ns(EQUAL.layer_flops(512))
    expected = (stages / 2 - 1) * (3 + 2 - 3 * WEIGHTS_OF_FORWARD) * one_ns
    assert found.bubble_ns == pytest.approx(expected, rel=1e-3)
    assert found.compute_ns == pytest.approx(batches * 3 * one_ns, rel=1e-3)
    plain = train(EQUAL, replace(plan, schedule="1f1b"), GPU, network(1e18)).memory
    assert found.memory.parameters == pytest.approx(2 * plain.parameters, rel=1e-3)
    assert found.memory.activations == pytest.approx(plain.activations * (stages + 1) / stages)


def test_pipeline__dualpipe_hides_what_experts_exchange() -> None:
    """As long as AllToAlls take less than computation; 1F1B waits for each of them."""
    model = Model("experts", 8, 1_024, 16, 4_096, 1, 512, experts=8, active=2, tied=True)
    plan = Plan(data=2, expert=2, pipeline=4, global_batch=16)
    exposed = {}
    for schedule in ("1f1b", "dualpipe"):
        found = train(model, replace(plan, schedule=schedule), GPU, network(1e9, 0.0, 2))
        (row,) = (row for row in found.rows if row.kind == "expert")
        exposed[schedule] = row.exposed_ns
    # Two AllToAlls of half a microbatch's tokens, in forward and in backward, 8 times 2 layers;
    # with DualPipe only those after the last computation are left.
    each_ns = 2 * 512 * 1_024 * 2 / 2 / 1e9 * 1e9
    assert exposed["1f1b"] >= 8 * 2 * 4 * each_ns
    assert exposed["dualpipe"] <= 2 * 2 * each_ns


def test_tensor__with_sequence_parallelism_gathers_and_scatters() -> None:
    """Instead of two AllReduces of a layer in each pass: the same bytes."""
    moved = {}
    for sequence in (False, True):
        plan = Plan(tensor=4, sequence=sequence)
        rows = {row.kind: row for row in train(SMALL, plan, GPU, network()).rows}
        moved[sequence] = sum(row.each_ns * row.count for row in rows.values())
        kinds = {"tensor gathers", "tensor scatters"} if sequence else {"tensor"}
        assert set(rows) == kinds
        assert {row.count for row in rows.values()} == {4 * SMALL.layers}
    assert moved[True] == pytest.approx(moved[False])


@pytest.mark.parametrize(
    ("rate", "exposed"),
    [
        (1e10, 1 / 4),  # a part of 1/t waits for the product before it
        # Of operations that are longer, as much hides as the products take: of a layer's 10.47 ms
        # without attention's share of 7.7 %, 9.66 ms of 629 ms.
        (1e7, 1 - 9.66 / 629.1),
    ],
)
def test_tensor__overlap_hides_all_but_one_part(rate: float, exposed: float) -> None:
    plan = Plan(tensor=4)
    alone, beside = (
        train(SMALL, replace(plan, overlap=overlap), GPU, network(rate)).exposed_ns
        for overlap in (False, True)
    )
    layer_ns = (1 - attention_share(SMALL)) * 3 * GPU.ns(SMALL.layer_flops(512)) / 4
    # Two AllReduces in forward, two in backward; each sends 2 x 3/4 of the values.
    sums_ns = 4 * 1.5 * 512 * 1_024 * 2 / rate * 1e9
    assert alone == pytest.approx(8 * sums_ns, rel=1e-3)
    assert beside == pytest.approx(8 * max(sums_ns / 4, sums_ns - layer_ns), rel=1e-3)
    assert beside / alone == pytest.approx(exposed, rel=1e-3)


@pytest.mark.parametrize("chunks", [2, 4])
def test_pipeline__interleaving_divides_the_bubble(chunks: int) -> None:
    """By the number of chunks (Narayanan et al., SC 2021, section 2.2.2)."""
    model = Model("equal", 16, 1_024, 16, 4_096, 1, 512, tied=True)
    plan = Plan(pipeline=4, interleave=chunks, global_batch=16)
    found = train(model, plan, GPU, network(1e18))
    one_ns = 3 * model.layers / 4 * GPU.ns(model.layer_flops(512))
    assert found.bubble_ns == pytest.approx(3 * one_ns / chunks, rel=1e-3)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_pipeline__every_pass_happens_once_and_nothing_waits_for_ever(
    stages: int, chunks: int, rounds: int
) -> None:
    model = Model("deep", 24, 64, 4, 256, 100, 16)
    plan = Plan(pipeline=stages, interleave=chunks, global_batch=stages * rounds)
    for stage in range(stages):
        passes = list(order(plan, stage))
        assert len(set(passes)) == len(passes) == 2 * chunks * stages * rounds
        assert {chunk % stages for _, chunk, _ in passes} == {stage}
    run(Step(model, plan, of_gpu(model, plan, GPU), network()).build())


@pytest.mark.parametrize(
    "more",
    [
        {"data": 4, "tensor": 8, "pipeline": 4, "global_batch": 4 * 39},
        {"data": 4, "tensor": 8, "pipeline": 4, "interleave": 2, "global_batch": 4 * 40},
        {"data": 8, "pipeline": 4, "global_batch": 8 * 40, "schedule": "zero-bubble"},
        {"data": 8, "pipeline": 4, "global_batch": 8 * 40, "schedule": "dualpipe"},
        {"data": 8, "zero": 3, "global_batch": 8 * 20},
        {"data": 8, "zero": 3, "pipeline": 4, "global_batch": 8 * 40},
        {"data": 8, "global_batch": 8 * 20},
    ],
)
def test_rounds__a_long_step_is_extended_from_shorter_ones(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, gpu = of_links("ethernet-100", "nvlink4", 8), replace(GPU, flops=1e14)
    plan = Plan(**more)
    whole = train(PRESETS["megatron-1.7b"], plan, gpu, net)
    monkeypatch.setattr("transport.estimate.rounds.PASSES_EXACT", 0)
    found = train(PRESETS["megatron-1.7b"], plan, gpu, net)
    assert whole.scheduled == plan.microbatches
    assert found.scheduled <= 4 * plan.pipeline
    for name in ("step_ns", "compute_ns", "bubble_ns", "exposed_ns", "communication_ns"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    for row, other in zip(found.rows, whole.rows, strict=True):
        assert (row.kind, row.count) == (other.kind, other.count)
        assert row.exposed_ns == pytest.approx(other.exposed_ns, rel=1e-6, abs=1.0)


def test_rounds__thirty_five_stages_of_a_large_batch() -> None:
    """Narayanan et al.'s 530 billion on 560 GPUs: 1,920 microbatches for two replicas."""
    plan = Plan(data=2, tensor=8, pipeline=35, global_batch=1_920, recompute=True, flash=False)
    found = train(PRESETS["megatron-530b"], plan, GPU, of_links("infiniband-200", "nvlink3", 8))
    assert found.scheduled < plan.microbatches == 960
    # (p - 1) of m + p - 1 rounds is the bubble; the first and last stage compute a little more.
    assert found.bubble_ns / found.compute_ns == pytest.approx(34 / 960, rel=0.1)


def test_data__gradients_hide_behind_backward_but_for_the_last_bucket() -> None:
    model = Model("flat", 8, 1_024, 16, 4_096, 1, 512, tied=True)
    layer_bytes = model.layer_parameters * 2
    plan = Plan(data=2, global_batch=2, bucket_bytes=layer_bytes)
    backward_ns = 2 * GPU.ns(model.layer_flops(512))
    quick, slow = (network(layer_bytes / (share * backward_ns) * 1e9) for share in (0.5, 2.0))
    found = train(model, plan, GPU, quick)
    # With two ranks each rank sends as many bytes as the bucket has.
    assert found.exposed_ns == pytest.approx(0.5 * backward_ns, rel=1e-3)
    found = train(model, plan, GPU, slow)
    assert found.exposed_ns == pytest.approx((8 * 2 - 7) * backward_ns, rel=1e-3)
    (row,) = found.rows
    assert (row.kind, row.operation, row.count) == ("gradients", "all_reduce", 8)
    assert found.bottleneck == "communication of gradients (between)"


def test_data__gradients_hide_beside_tensor_parallel_operations_too() -> None:
    """The next layer waits for the tensor parallel sums of one layer, not for its gradients."""
    model = Model("flat", 8, 1_024, 16, 4_096, 1, 512, tied=True)
    plan = Plan(data=2, tensor=2, global_batch=2, bucket_bytes=model.layer_parameters)
    found = train(model, plan, GPU, network(1e9, 0.0, 2))
    rows = {row.kind: row for row in found.rows}
    assert rows["gradients"].each_ns < GPU.ns(model.layer_flops(512))
    last_sums_ns = 2 * rows["tensor"].each_ns  # the last bucket is sent beside them
    exposed_ns = rows["gradients"].each_ns - last_sums_ns
    assert rows["gradients"].exposed_ns == pytest.approx(exposed_ns, rel=1e-3)
    # Without a link of their own, the sums need the NIC that gradients use, too.
    shared = train(model, plan, GPU, network(1e9))
    assert shared.step_ns > found.step_ns + last_sums_ns / 2


@pytest.mark.parametrize(("vocabulary", "gathers"), [(1, 2), (16_384, 1)])
def test_sharded__the_next_layer_is_gathered_beside_the_current_one(
    vocabulary: int, gathers: int
) -> None:
    """FSDP2: only the first layer waits in each pass; in backward the logits hide its gathering.

    A layer's parameters take half a forward pass, and the last layer's gradients are left over.
    """
    model = Model("flat", 8, 1_024, 16, 4_096, vocabulary, 512, tied=True)
    forward_ns = GPU.ns(model.layer_flops(512))
    # Of two ranks each sends half of the parameters.
    rate = model.layer_parameters * 2 / 2 / (0.5 * forward_ns) * 1e9
    found = train(model, Plan(data=2, zero=3, global_batch=2), GPU, network(rate))
    rows = {row.kind: row for row in found.rows}
    assert rows["parameters"].each_ns == pytest.approx(0.5 * forward_ns)
    assert rows["parameters"].exposed_ns == pytest.approx(gathers * 0.5 * forward_ns, rel=1e-2)
    if vocabulary == 1:
        assert rows["gradients"].exposed_ns == pytest.approx(0.5 * forward_ns, rel=1e-2)


def test_sharded__moves_half_as_much_again_as_data_parallelism() -> None:
    """Rajbhandari et al., "ZeRO" (2020), section 7: 1.5 times the bytes, with one microbatch."""
    moved = []
    for zero in (0, 3):
        plan = Plan(data=4, global_batch=4, zero=zero, bucket_bytes=1)
        step = Step(SMALL, plan, of_gpu(SMALL, plan, GPU), network())
        step.build()
        moved.append(sum(task.sent.terms.between_bytes for task in step.tasks if task.sent))
    assert moved[1] / moved[0] == pytest.approx(1.5, rel=0.1)  # embeddings are gathered once


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_experts__are_reduced_by_the_ranks_that_have_the_same_ones(zero: int) -> None:
    model = PRESETS["mixtral-8x7b"]
    for expert, copies in ((1, 0), (4, 4)):
        plan = Plan(data=16, expert=expert, zero=zero, global_batch=16)
        found = train(model, plan, GPU, network())
        rows = {row.kind: row for row in found.rows}
        assert ("experts' gradients" in rows) == (copies > 0)
        if copies:
            each = model.experts * model.expert_parameters / expert
            assert rows["experts' gradients"].ranks == copies
            assert rows["experts' gradients"].bytes == pytest.approx(each * plan.gradient_bytes)
            assert rows["gradients"].ranks == 16
        if copies and zero:
            assert rows["experts' parameters"].ranks == copies
    alone = train(model, Plan(data=8, expert=8, global_batch=8), GPU, network())
    assert "experts' gradients" not in {row.kind for row in alone.rows}  # each rank has its own


@pytest.mark.parametrize(
    ("parts", "nodes", "copies"),
    [
        (0, 2, (2, 16)),  # by default two GPUs share each expert: 8 x 2 GPUs are two nodes
        (2, 2, (2, 16)),
        (1, 1, (4, 8)),
    ],
)
def test_experts__whole_ones_stay_on_a_node(
    parts: int, nodes: int, copies: tuple[int, int]
) -> None:
    """Expert parallelism of 8 beside tensor parallelism of 2, on 32 GPUs in nodes of 8."""
    model = replace(SMALL, experts=8, active=2)
    plan = Plan(data=16, tensor=2, expert=8, sequence=True, global_batch=16, expert_tensor=parts)
    plan.check(model)
    group = plan.group("copies")
    assert plan.group("expert").nodes(8) == nodes
    assert (group.ranks, group.stride) == copies
    rows = {row.kind: row for row in train(model, plan, GPU, network(gpus_per_node=8)).rows}
    assert (rows["expert"].ranks, rows["expert"].nodes) == (8, nodes)
    assert ("expert gathers" in rows) == (parts != 1)
    # A microbatch gathers 512 tokens of 1,024 values of 2 bytes for attention, forward and
    # backward in each layer; those that share an expert gather both copies of the tokens.
    assert (rows["tensor gathers"].count, rows["tensor gathers"].bytes) == (16, 2**20)
    if parts != 1:
        gathers = rows["expert gathers"]
        assert (gathers.count, gathers.bytes, gathers.ranks) == (16, 2 * 2**20, 2)
    expert = model.expert_parameters * 2 / (parts or 2)
    assert rows["experts' gradients"].bytes == expert
    whole = memory_of(model, plan).parameters
    layers = 8 * (model.attention_parameters / 2 * 2 + expert)
    assert whole == layers + 2 * model.vocabulary * model.hidden / 2 * 2


def test_groups__are_placed_as_in_megatron() -> None:
    """Tensor, context, expert, data: 2 x 4 x 8 x 2 stages, in nodes of 8 GPUs."""
    plan = Plan(data=8, tensor=2, context=4, pipeline=2, expert=16)
    groups = {
        name: (plan.group(name).ranks, plan.group(name).stride, plan.group(name).nodes(8))
        for name in ("tensor", "context", "data", "expert", "copies", "pipeline")
    }
    assert groups == {
        "tensor": (2, 1, 1),
        "context": (4, 2, 1),
        "data": (32, 2, 8),
        "expert": (16, 2, 4),
        "copies": (2, 32, 2),
        "pipeline": (2, 64, 2),
    }
    halves = replace(plan, expert=1, zero=3, shard=4)
    assert (halves.group("shard").ranks, halves.group("shard").nodes(8)) == (4, 1)
    assert (halves.group("replicas").ranks, halves.group("replicas").nodes(8)) == (8, 8)


def test_context__its_ranks_sum_gradients_too() -> None:
    """8 x 8 ranks on 8 nodes: within a node's ring they share what leaves it among 8 NICs."""
    plan = Plan(data=8, context=8, global_batch=8)
    net = of_links("ethernet-400", "nvlink4", 8)
    rows = {row.kind: row for row in train(PRESETS["llama2-7b"], plan, GPU, net).rows}
    assert (rows["gradients"].ranks, rows["gradients"].nodes) == (64, 8)
    assert (rows["context"].ranks, rows["context"].nodes) == (8, 1)
    alone = replace(plan, data=64, context=1, global_batch=64)
    other = {row.kind: row for row in train(PRESETS["llama2-7b"], alone, GPU, net).rows}
    assert rows["gradients"].each_ns == other["gradients"].each_ns


@pytest.mark.parametrize("rate", [1e7, 1e10])
def test_context__the_ring_hides_behind_attention(rate: float) -> None:
    """Keys and values of 128 tokens go around 4 ranks, in backward with their gradients.

    Attention is 2/26 of a layer of `small`, and a quarter of it hides one of three sends.
    """
    layer_ns = GPU.ns(SMALL.layer_flops(128))
    send_ns = 2 * 128 * 1_024 * 2 / rate * 1e9
    for beside, part_ns in ((False, 0.0), (True, 2 / 26 * layer_ns / 4)):
        found = train(SMALL, Plan(context=4, overlap_context=beside), GPU, network(rate))
        (row,) = (row for row in found.rows if row.kind == "context")
        assert row.each_ns == pytest.approx(send_ns)
        assert row.count == 2 * 8 * 3
        # Backward sends and computes twice as much.
        waits_ns = 8 * 3 * (1 + 2) * max(send_ns - part_ns, 0.0)
        waited = [one.ns for one in found.tasks if one.kind == "context" and one.stream == "main"]
        assert sum(waited) == pytest.approx(waits_ns, rel=1e-6)
        assert row.total_ns == pytest.approx(8 * 3 * (1 + 2) * send_ns)
        assert (waits_ns > 0) == (rate == 1e7 or not beside)


@pytest.mark.parametrize(("rate", "waits"), [(1e12, 1), (1e3, 8)])
def test_overlap_gather__waits_for_the_gathers_that_the_forward_pass_cannot_hide(
    rate: float, waits: int
) -> None:
    """A fast network exposes one of eight gathers; a slow one all, less what seven layers hide."""
    model = Model("flat", 8, 1_024, 16, 4_096, 1, 512, tied=True)
    plan = Plan(data=8, zero=1, overlap_gather=True, global_batch=8)
    found = train(model, plan, GPU, network(rate))
    rows = {row.kind: row for row in found.rows}
    gathers = rows["parameters"]
    assert (gathers.operation, gathers.count) == ("all_gather", 8)
    assert gathers.bytes == 2 * model.layer_parameters
    layer_ns = GPU.ns(model.layer_flops(512))
    exposed_ns = waits * gathers.each_ns - (waits - 1) * layer_ns
    assert gathers.exposed_ns == pytest.approx(exposed_ns, rel=1e-3)
    late = train(model, replace(plan, overlap_gather=False), GPU, network(rate))
    assert found.step_ns < late.step_ns


def test_overlap_gather__needs_zero_1_or_2() -> None:
    for zero in (0, 3):
        with pytest.raises(PlanError, match="overlap_gather: ZeRO"):
            Plan(data=8, zero=zero, overlap_gather=True, global_batch=8).check(SMALL)


def test_experts__shared_ones_are_on_every_gpu() -> None:
    """Tokens are sent to the routed experts alone; a shared one is reduced with attention."""
    model = Model("moe", 2, 1_024, 16, 512, 1, 512, tied=True, experts=8, active=3, shared=1)
    plan = Plan(data=8, expert=8, global_batch=8, bucket_bytes=1 << 40)
    rows = {row.kind: row for row in train(model, plan, GPU, network()).rows}
    assert rows["expert"].bytes == 512 * 1_024 * 2 * 2
    shared = 4 * 1_024**2 + 2 * 1_024 * 512
    assert rows["gradients"].bytes == pytest.approx(2 * (2 * shared + 1_024))
    assert model.parameters == 2 * (shared + 8 * 2 * 1_024 * 512) + 1_024
    with pytest.raises(PlanError, match="active: 1: must be more than the 1 shared"):
        Plan().check(replace(model, active=1))


def test_shard__scatters_inside_a_node_and_sums_between_nodes() -> None:
    """HSDP: a layer's gradients within 8 ranks, an eighth of them over 4 replicas."""
    model = Model("flat", 8, 1_024, 16, 4_096, 1, 512, tied=True)
    plan = Plan(data=32, zero=3, shard=8, global_batch=32)
    found = train(model, plan, GPU, of_links("ethernet-400", "nvlink4", 8))
    rows = {row.kind: row for row in found.rows}
    layer_bytes = model.layer_parameters * plan.gradient_bytes
    # The first operation is the last layer's; the last one has the embedding, too.
    for kind, operation, ranks, nodes, size in (
        ("parameters", "all_gather", 8, 1, layer_bytes),
        ("gradients", "reduce_scatter", 8, 1, layer_bytes),
        ("gradients of replicas", "all_reduce", 4, 4, layer_bytes / 8),
    ):
        row = rows[kind]
        assert (row.operation, row.ranks, row.nodes) == (operation, ranks, nodes)
        assert row.bytes == pytest.approx(size)
    assert rows["gradients of replicas"].count == rows["gradients"].count == 8
    assert found.memory.optimizer == pytest.approx(12 * model.parameters / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("zero", "pipeline", "times"), [(1, 1, 1), (2, 1, 4), (2, 2, 1), (3, 1, 4), (3, 2, 1)]
)
def test_zero__two_scatters_gradients_of_each_microbatch(
    zero: int, pipeline: int, times: int
) -> None:
    """Without stages: else parts would not be kept; then it keeps whole gradients until the end.

    FSDP then gathers parameters once, too.
    """
    model = Model("flat", 8, 1_024, 16, 4_096, 1, 512, tied=True)
    bucket = model.layer_parameters * 2
    plan = Plan(data=2, pipeline=pipeline, zero=zero, global_batch=8, bucket_bytes=bucket)
    found = train(model, plan, GPU, network())
    (row,) = (row for row in found.rows if row.kind == "gradients")
    assert row.count == 8 * times
    if zero == 3:
        (gathers,) = (row for row in found.rows if row.kind == "parameters")
        assert gathers.count == 8 * (2 * times if times > 1 else 1)
    whole = 2 * model.parameters / pipeline
    assert found.memory.gradients == pytest.approx(whole / (2 if times > 1 else 1), rel=1e-3)


def test_train__gains_say_what_would_help() -> None:
    slow = train(SMALL, Plan(data=8, global_batch=8), GPU, network(1e6))
    assert slow.gains["twice the bandwidth between nodes"] == pytest.approx(0.5, abs=0.05)
    assert slow.gains["half the latency"] == pytest.approx(1.0)
    late = train(SMALL, Plan(data=8, global_batch=8), GPU, network(1e15, step_ns=1e9))
    assert late.gains["half the latency"] == pytest.approx(0.5, abs=0.05)
    assert late.gains["buckets of twice the size"] < 0.95


def test_train__model_and_hardware_flops() -> None:
    """Full recomputation runs each layer's forward pass again; a mask leaves half of attention."""
    found = train(SMALL, Plan(recompute=True), GPU, network())
    layers, head = SMALL.layers * SMALL.layer_flops(512), SMALL.head_flops(512)
    step_s = found.step_ns / 1e9
    assert found.model_flops_per_gpu == pytest.approx(3 * (layers + head) / step_s)
    assert found.flops_per_gpu == pytest.approx((4 * layers + 3 * head) / step_s)
    masked = 3 * SMALL.layers * 4 * 512 * SMALL.sequence * SMALL.hidden / 2
    assert found.causal_flops_per_gpu == pytest.approx((3 * (layers + head) - masked) / step_s)
    assert found.mfu == pytest.approx(found.model_flops_per_gpu / GPU.flops)
    assert found.hfu == pytest.approx(found.flops_per_gpu / GPU.flops)


def test_overlap__hides_nothing_twice() -> None:
    """Neither beside products and attention at once, nor in DualPipe beside another microbatch."""
    model, slow = replace(SMALL, sequence=4_096), network(1e6)

    def step_ns(flops: float, **more: Any) -> float:
        plan = Plan(tensor=2, global_batch=8, overlap=True, overlap_context=True, **more)
        return train(model, plan, replace(GPU, flops=flops), slow).step_ns

    for more in ({"context": 2}, {"pipeline": 2, "schedule": "dualpipe"}):
        assert step_ns(1e13, **more) <= step_ns(1e12, **more)
