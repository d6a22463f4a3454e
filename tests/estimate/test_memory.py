"""Tests the memory of a step: terms by hand, and published peaks of real runs."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from bench.lib.published_plans import plan_of
from bench.lib.published_runs import SETS, PublishedRun, read
from transport.estimate.activations import (
    kept_activations,
    layer_activations,
    repeated_passes,
)
from transport.estimate.gpus import gpu
from transport.estimate.memory import UNUSED_SHARE, memory_of
from transport.estimate.models import PRESETS, Model
from transport.estimate.pipelines import in_flight
from transport.estimate.plan import ADAM_BYTES, REMATS, Plan

GIB = 1 << 30
SMALL = Model("small", 8, 1_024, 16, 4_096, 1_000, 512)
LLAMA8, LLAMA70 = PRESETS["llama3-8b"], PRESETS["llama3-70b"]
TORCHTITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
ANALYSIS = "NVIDIA/Megatron-LM pull request 482, tools/get_training_info/README.md"
TRAINY = "pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
OPEN_SCI = "log of open-sci-ref 1.7b with Megatron Core on Leonardo, 2025-03-31, iteration 50"


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # s = 512, b = 2, h = 1024, a = 16: sbh = 2^20, and 5as/h = 40.
        (Plan(micro_batch=2, flash=False), 34 + 40),
        (Plan(micro_batch=2), 34),
        (Plan(micro_batch=2, tensor=4, flash=False), 10 + 24 / 4 + 40 / 4),
        (Plan(micro_batch=2, tensor=4, sequence=True, flash=False), (34 + 40) / 4),
        (Plan(micro_batch=2, context=2), 34 / 2),
        (Plan(micro_batch=2, value_bytes=4), 68),
    ],
)
def test_layer__activations_of_gpt_are_those_of_korthikanti(plan: Plan, expected: float) -> None:
    """Section 4 of arXiv 2205.05198, equations 1 to 4, in units of sbh bytes."""
    assert layer_activations(SMALL, plan) == expected * 2**20


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(micro_batch=2, tensor=4, flash=False, selective="attention"), 10 + 24 / 4),
        (
            Plan(micro_batch=2, tensor=4, flash=False, selective="attention", sequence=True),
            34 / 4,
        ),
        (Plan(micro_batch=2, recompute=True), 2),
        (Plan(micro_batch=2, tensor=4, recompute=True), 2),
        (Plan(micro_batch=2, tensor=4, sequence=True, recompute=True), 2 / 4),
        # MaxText: the layer's input 2, queries, keys and values 6; with attention's last product 2
        # and the MLP's first one 8. Its last one is not needed in backward.
        (Plan(micro_batch=2, kept=()), 2),
        (Plan(micro_batch=2, kept=REMATS["maxtext-save_qkv_proj"]), 8),
        (Plan(micro_batch=2, tensor=2, kept=REMATS["maxtext-minimal"]), 4 + 6 / 2 + 8 / 2),
        # Of operators: the layer's input 2, keys, values and queries 6, attention 2, MLP 2 x 4.
        (Plan(micro_batch=2, selective="operators"), 18),
    ],
)
def test_layer__recomputation_keeps_less(plan: Plan, expected: float) -> None:
    assert kept_activations(SMALL, plan) == expected * 2**20


@pytest.mark.parametrize(
    ("framework", "plan", "expected"),
    [
        # Llama 3 8B: k = 8/32, f = 14336/4096 = 3.5. 8 + 2 + 1 + 2 + 8 x 3.5 = 41.
        ("pytorch", {}, 41),
        ("megatron", {}, 41 - 7),  # SwiGLU is fused
        ("compiled", {}, 41 - 7),
        ("pytorch", {"tensor": 8}, 8 + 33 / 8),
        ("pytorch", {"tensor": 8, "sequence": True}, 41 / 8),
        ("pytorch", {"recompute": True}, 2),
        # Inputs of the layer and the next one 4, queries 2, values 0.5, attention 2, the gate 7.
        ("pytorch", {"selective": "operators"}, 15.5),
        ("pytorch", {"flash": False}, 41 + 2 * 32 * 8_192 / 4_096),
    ],
)
def test_layer__grouped_queries_and_swiglu_change_the_terms(
    framework: str, plan: dict[str, Any], expected: float
) -> None:
    found = kept_activations(LLAMA8, Plan(**plan, framework=framework))
    assert found == pytest.approx(expected * 8_192 * 4_096)


def test_layer__experts_get_copies_of_their_tokens() -> None:
    """Mixtral, two active experts: f = 2 x 3.5, and 4 for each active one. 13 + 56 + 8."""
    found = layer_activations(PRESETS["mixtral-8x7b"], Plan())
    assert found == pytest.approx((13 + 8 * 7 + 4 * 2) * 4_096 * 4_096)


def test_recomputation__repeats_operations_of_what_it_does_not_keep() -> None:
    """A layer of `small`: 24 h^2 + 4 s h operations for each token, 26 h^2 with s = h / 2."""
    assert repeated_passes(SMALL, Plan()) == 0
    assert repeated_passes(SMALL, Plan(recompute=True)) == 1
    assert repeated_passes(SMALL, Plan(selective="attention")) == pytest.approx(2 / 26)
    assert repeated_passes(SMALL, Plan(selective="operators")) == pytest.approx(2 / 26)
    # Without FlashAttention its matrix is made again, too.
    plan = Plan(selective="operators", flash=False)
    assert repeated_passes(SMALL, plan) == pytest.approx(4 / 26)


@pytest.mark.parametrize(
    ("plan", "stage", "expected"),
    [
        (Plan(global_batch=4), 0, 1),
        (Plan(pipeline=4, global_batch=16), 0, 4),
        (Plan(pipeline=4, global_batch=16), 3, 1),
        (Plan(pipeline=4, global_batch=2), 0, 2),
        # p v + p - 1 chunks: 1 + (p - 1) / (p v) times what 1F1B keeps.
        (Plan(pipeline=4, interleave=2, global_batch=16), 0, 11),
        (Plan(pipeline=4, interleave=2, global_batch=16 << 40), 0, 11),
        (Plan(pipeline=8, global_batch=16 << 40, schedule="zero-bubble"), 7, 8),
    ],
)
def test_pipeline__microbatches_in_flight(plan: Plan, stage: int, expected: int) -> None:
    assert in_flight(plan, stage) == expected


def test_states__of_mixed_precision_are_sixteen_bytes_a_parameter() -> None:
    for zero, expected in ((0, 16), (1, 4 + 12 / 4), (2, 2 + 14 / 4), (3, 4)):
        found = memory_of(SMALL, Plan(data=4, global_batch=4, zero=zero))
        states = found.parameters + found.gradients + found.optimizer
        assert states / SMALL.parameters == pytest.approx(expected)


def test_logits__and_their_gradient_are_copies_in_four_bytes() -> None:
    """8,192 tokens and 128,256 words: 4.2 GB for each copy in fp32; bf16 and three of them."""
    found = memory_of(LLAMA8, Plan(recompute=True))
    copy_bytes = 8_192 * 128_256 * 4
    assert copy_bytes == pytest.approx(4.2e9, rel=0.01)
    hidden_bytes = 2 * 2 * 8_192 * 4_096  # the input of their product, and its gradient
    assert found.logits == pytest.approx(3.5 * copy_bytes + hidden_bytes)
    assert found.activations == 32 * 2 * 8_192 * 4_096
    fused = memory_of(LLAMA8, Plan(recompute=True, framework="megatron"))
    assert fused.logits == pytest.approx(2.5 * copy_bytes + hidden_bytes)
    compiled = memory_of(LLAMA8, Plan(framework="compiled"))
    assert compiled.logits == pytest.approx(copy_bytes + hidden_bytes)


def test_peak__is_in_backward_if_a_layer_needs_more_than_the_logits() -> None:
    found = memory_of(SMALL, Plan(recompute=True, micro_batch=2, global_batch=2))
    assert found.logits == 0
    assert found.activations == (8 * 2 + 34 - 2) * 2**20


def test_buffers__of_fsdp_and_ddp() -> None:
    data: dict[str, Any] = {"data": 8, "global_batch": 8}
    layer, word = 218_103_808, 128_256 * 4_096  # parameters of a layer, and of the logits
    found = memory_of(LLAMA8, Plan(zero=3, **data))
    assert found.buffers == 2 * (2 * layer + 2 * word) + 4 * word
    assert memory_of(LLAMA8, Plan(**data)).buffers == 2 * LLAMA8.parameters
    assert memory_of(LLAMA8, Plan(framework="megatron", **data)).buffers == 0
    assert memory_of(LLAMA8, Plan()).buffers == 0


def test_buffers__of_fsdp_with_pipeline_stages_are_all_parameters() -> None:
    """Gathered once a step; gradients are whole until its end, and the rest is in parts.

    The first stage receives gradients of four microbatches, each into a buffer of its own.
    """
    plan = Plan(data=4, pipeline=2, zero=3, global_batch=16)
    found = memory_of(SMALL, plan)
    mine = 4 * SMALL.layer_parameters + SMALL.vocabulary * SMALL.hidden
    received = 4 * 2 * SMALL.sequence * SMALL.hidden
    assert found.buffers == found.gradients + received == 2 * mine + received
    megatron = memory_of(SMALL, replace(plan, framework="megatron"))
    assert megatron.buffers == 2 * mine
    assert (found.parameters, found.optimizer) == (2 * mine / 4, 12 * mine / 4)


def test_total__has_what_the_allocator_and_nccl_take() -> None:
    found = memory_of(SMALL, Plan(data=2, tensor=2, global_batch=2))
    assert found.reserved == pytest.approx((1 + UNUSED_SHARE) * found.allocated)
    # Two communicators with 16 channels of two buffers of 10 MiB.
    assert found.total - found.reserved == pytest.approx(500e6 + 2 * 16 * 2 * 10 * 2**20)


def test_korthikanti__their_runs_fit_eighty_gigabytes_with_selective_recomputation() -> None:
    """Their four models, table 3; without recomputation and sequence parallelism none fits."""
    for layers, hidden, heads, pipeline, interleave, micro_batch, batch in (
        (48, 6_144, 64, 1, 1, 4, 4),
        (96, 12_288, 96, 8, 3, 1, 64),
        (105, 20_480, 128, 35, 3, 1, 280),
        (128, 25_600, 160, 64, 1, 1, 512),
    ):
        model = Model("one", layers, hidden, heads, 4 * hidden, 51_200, 2_048, tied=True)
        plan = Plan(
            tensor=8,
            pipeline=pipeline,
            interleave=interleave,
            micro_batch=micro_batch,
            global_batch=batch,
            gradient_bytes=4,
            flash=False,
            framework="megatron",
        )
        assert memory_of(model, plan).allocated > 80 * GIB
        paper = replace(plan, selective="attention", sequence=True)
        assert memory_of(model, paper).allocated < 80 * GIB


@dataclass(frozen=True)
class Peak:
    """A published peak. reserved: of reserved memory, not of allocated memory. plan: its fields."""

    name: str
    source: str
    gib: float
    model: Model
    plan: dict[str, Any]
    reserved: bool = True


# torch.compile took the layers then, and not the loss.
def _titan(table: int, name: str, gib: float, model: Model, **plan: Any) -> Peak:
    return Peak(f"{table}: {name}", TORCHTITAN, gib, model, {"zero": 3} | plan)


# The tool's Llama 2 7B: sequences of 2,048 tokens, 50,432 words, 10,880 hidden units of the MLP.
# Megatron did not fuse SwiGLU then, and reports what is allocated.
_LLAMA2 = replace(PRESETS["llama2-7b"], sequence=2_048, vocabulary=50_432, ffn=10_880, tied=True)


def _analysis(gib: float, **plan: int) -> Peak:
    name = ", ".join(f"{key} {value}" for key, value in plan.items())
    states: dict[str, Any] = {"zero": 1, "gradient_bytes": 4, "global_batch": 2_048}
    return Peak(name, ANALYSIS, gib, _LLAMA2, states | plan, reserved=False)


def _long(context: int, gib: float) -> Peak:
    """Sequences of 32,768 tokens for each of the GPUs that share them; 8 GPUs."""
    model = replace(LLAMA8, sequence=32_768 * context)
    data = 8 // context
    plan: dict[str, Any] = {"data": data, "context": context, "global_batch": data}
    return _titan(2, f"context {context}", gib, model, recompute=True, **plan)


_SELECTIVE = {"micro_batch": 2, "selective": "operators"}
_2D = {"data": 32, "tensor": 8, "sequence": True, "micro_batch": 16, "global_batch": 512}


def _trainy(gpus: int, gib: float) -> Peak:
    """Float8, and torch.compile of the model and the loss."""
    plan = {"data": gpus, "zero": 3, "global_batch": 2 * gpus, "framework": "compiled"}
    return Peak(f"compiled, {gpus} GPUs", TRAINY, gib, LLAMA8, plan | _SELECTIVE)


def _pipelined(table: int, name: str, gib: float, context: int = 0, **more: int) -> Peak:
    """512 GPUs: 8 pipeline stages of 8 tensor parallel ones; 8 microbatches are assumed.

    context: ranks that share sequences of 32,768 tokens each; 0: four sequences of 8,192 tokens.
    """
    model = replace(PRESETS["llama3-405b"], sequence=32_768 * context or 8_192)
    data = 8 // (context or 1)
    plan: dict[str, Any] = {
        "data": data,
        "context": context or 1,
        "tensor": 8,
        "pipeline": 8,
        "micro_batch": 1 if context else 4,
        "global_batch": (8 if context else 32) * data,
        "sequence": True,
        "gradient_bytes": 4,
    }
    return _titan(table, name, gib, model, recompute=True, **plan, **more)


PIPELINED = (
    _pipelined(5, "1F1B", 82.5),
    _pipelined(5, "interleaved 1F1B", 72.7, interleave=2),
    *(
        _pipelined(6, f"context {context}", gib, context)
        for context, gib in ((1, 75.3), (2, 75.9), (4, 77.1), (8, 84.9))
    ),
)
PEAKS = (
    _titan(1, "8 GPUs", 82.4, LLAMA8, data=8, global_batch=16, **_SELECTIVE),
    _titan(1, "compiled", 77.0, LLAMA8, data=8, global_batch=16, **_SELECTIVE),
    _titan(1, "float8", 76.8, LLAMA8, data=8, global_batch=16, **_SELECTIVE),
    _titan(3, "128 GPUs", 67.0, LLAMA8, data=128, global_batch=256, **_SELECTIVE),
    _titan(3, "compiled", 62.0, LLAMA8, data=128, global_batch=256, **_SELECTIVE),
    _titan(3, "float8", 61.8, LLAMA8, data=128, global_batch=256, **_SELECTIVE),
    *(_long(context, gib) for context, gib in ((1, 83.9), (2, 84.2), (4, 84.0), (8, 84.5))),
    _titan(4, "2D", 71.9, LLAMA70, recompute=True, **_2D),
    _titan(4, "2D, async TP", 67.6, LLAMA70, recompute=True, **_2D),
    *(_trainy(gpus, gib) for gpus, gib in ((32, 47.96), (64, 46.97))),
    _analysis(69.1, data=8, micro_batch=2),
    _analysis(55.7, data=4, tensor=2, micro_batch=4),
    _analysis(49.8, data=4, pipeline=2, micro_batch=2),
    _analysis(28.8, tensor=8, micro_batch=4),
    Peak(
        "252 GPUs",
        OPEN_SCI,
        50_277.16 / 1_024,
        Model("1.7b", 24, 2_048, 32, 8_192, 50_304, 4_096, gated=True, tied=True),
        {
            "data": 252,
            "micro_batch": 4,
            "global_batch": 1_008,
            "zero": 1,
            "gradient_bytes": 4,
            "selective": "attention",
            "framework": "megatron",
        },
        reserved=False,
    ),
)


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: f"{peak.model.name} {peak.name}")
def test_peak__agrees_with_published_runs(peak: Peak) -> None:
    """Within 10 % of each; torchtitan reports reserved memory, Megatron's logs allocated memory."""
    plan = Plan(**peak.plan)
    plan.check(peak.model)
    found = memory_of(peak.model, plan)
    assert (found.reserved if peak.reserved else found.allocated) / GIB == pytest.approx(
        peak.gib, rel=0.1
    )


@pytest.mark.parametrize("peak", PIPELINED, ids=lambda peak: f"{peak.model.name} {peak.name}")
def test_peak__of_fsdp_with_pipeline_stages_is_missed_by_up_to_a_fifth(peak: Peak) -> None:
    """Estimates are 3 to 19 % too small; what is missing is not known."""
    plan = Plan(**peak.plan)
    plan.check(peak.model)
    found = memory_of(peak.model, plan).reserved / GIB
    assert 0.8 * peak.gib < found < peak.gib


def test_fp8__transformer_engine_keeps_two_copies_of_linear_parameters() -> None:
    """Of 8 bits each: parameters, and their transposes; logits and embedding have 16 bits."""
    model = PRESETS["llama3-8b"]
    plan = Plan(tensor=2, framework="megatron")
    sixteen, eight = (memory_of(model, replace(plan, dtype=one)) for one in ("bf16", "fp8"))
    more = 2 * model.layers * model.layer_parameters / 2
    assert eight.parameters - sixteen.parameters == pytest.approx(more)
    assert eight.optimizer == sixteen.optimizer
    assert eight.gradients == sixteen.gradients
    whole, cast = (memory_of(model, Plan(dtype=one)) for one in ("bf16", "fp8"))
    assert whole == cast  # PyTorch casts parameters for each product


def test_memory__first_layers_without_experts_have_an_mlp() -> None:
    """Both stages have two layers; of the first stage, one has an MLP instead of experts."""
    model = Model("moe", 4, 64, 4, 32, 64, 64, experts=8, active=2, dense=1, dense_ffn=96)
    attention, experts, mlp, ends = 4 * 64**2, 8 * 2 * 64 * 32, 2 * 64 * 96, 64 * 64
    assert model.parameters == 4 * attention + 3 * experts + mlp + 2 * ends
    assert memory_of(model, Plan()).parameters == 2 * model.parameters
    stages = replace(model, dense=3)
    found = memory_of(stages, Plan(pipeline=2, global_batch=2)).parameters
    assert found == 2 * (2 * attention + experts + mlp + ends)  # that of the second stage


TPU_RUNS = [one for name in SETS for one in read(SETS[name]) if one.generation == "TPU"]


@pytest.mark.parametrize("run", TPU_RUNS, ids=lambda run: run.run)
def test_maxtext__published_runs_on_tpus_fit(run: PublishedRun) -> None:
    """With what a recipe keeps of layers on the chip, or else in the host's memory.

    Llama 3.1 70B on 32 v6e has weight_dtype bfloat16: weights and two moments of 2 bytes each.
    Where attention and MLP are side by side, backward needs neither's last product.
    """
    kept = () if "(full:" in run.assumed else plan_of(run).kept or ()
    is_bf16 = run.run == "tpu-recipes: llama3.1-70b, v6e-32"
    plan = replace(
        plan_of(run), framework="maxtext", kept=kept, optimizer_bytes=4 if is_bf16 else ADAM_BYTES
    )
    sizes = [memory_of(run.model, replace(plan, offload=one)).total for one in (False, True)]
    assert min(sizes) <= gpu(run.gpu).memory_bytes
    says_host = "host's memory" in run.assumed
    assert sizes[0] <= gpu(run.gpu).memory_bytes or says_host or run.gpu == "tpu-v7x"


def test_maxtext__terms_by_hand() -> None:
    """Llama 3 8B on 8 chips: 16 bytes of 1/8 of the parameters; logits and their gradient in 2."""
    plan = Plan(data=8, global_batch=8, zero=3, kept=(), framework="maxtext")
    found = memory_of(LLAMA8, replace(plan, offload=True))
    tokens, logits = 8_192, 128_256 * 4_096
    assert found.parameters + found.gradients + found.optimizer == 2 * LLAMA8.parameters
    assert found.logits == tokens * (4 * 128_256 + 4 * 4_096)
    assert found.buffers == 4 * logits
    assert (found.activations, found.unused, found.outside) == (0, 0, 0)
    # On the chip, the input of each layer stays: 2 bytes a value.
    assert memory_of(LLAMA8, plan).activations == 32 * 2 * tokens * 4_096
