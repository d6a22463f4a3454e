"""Tests the time of kernels against counts by hand: waves of tiles, memory, attention, experts."""

from dataclasses import replace

import pytest

from transport.estimate.computation import of_gpu
from transport.estimate.generations import GENERATIONS, Kernels
from transport.estimate.gpu_profiles import Facts
from transport.estimate.gpus import Gpu, gpu, names
from transport.estimate.kernels import (
    Product,
    attention_ns,
    between_ns,
    cast_ns,
    head_product,
    layer_products,
    product_ns,
)
from transport.estimate.models import PRESETS, Model
from transport.estimate.plan import FRAMEWORKS, REMATS, Plan, PlanError
from transport.estimate.ranges import queued_ns, range_of
from transport.estimate.training import Row

# Tiles of 256 x 128 reach the whole peak of 1e12 operations a second, 100 of them at once.
KERNELS = Kernels(
    products=1.0,
    depth=0.0,
    flash={"pytorch": (0.5, 0.25), "megatron": (1.0, 0.5)},
    flash_tokens=0.0,
    memory=1.0,
    unfused=2.0,
    launch_ns=0.0,
    spread=(0.8, 1.25),
)
GPU = Gpu("test", 1e12, 80e9, 1e15, sms=100, fitted=KERNELS, generation="hopper")
MODEL = Model("test", 2, 1_024, 8, 4_096, 32_000, 2_048, kv_heads=2, gated=True)


def test_product__full_waves_run_at_the_peak() -> None:
    # 10 x 10 tiles of 256 x 128 are one wave of 100 SMs.
    product = Product(2_560, 1_280, 512)
    assert product_ns(product, GPU, 2) == pytest.approx(product.flops / 1e12 * 1e9)


def test_product__one_tile_more_is_a_wave_more() -> None:
    # 101 tiles of 256 x 128, whichever way they lie, need two waves. Those of 128 x 128 are 202,
    # three waves of half the work at 0.92 of the rate: 1.63 waves; those of 64 x 128 are 404, five
    # waves of a quarter at 0.75: 1.67.
    wave_ns = product_ns(Product(256 * 100, 128, 512), GPU, 2)
    found_ns = product_ns(Product(256 * 101, 128, 512), GPU, 2)
    assert found_ns == pytest.approx(1.5 / 0.92 * wave_ns)


def test_product__without_a_number_of_sms_there_are_no_waves() -> None:
    other = replace(GPU, sms=0)
    product = Product(256 * 101, 128, 512)
    assert product_ns(product, other, 2) == pytest.approx(product.flops / 1e12 * 1e9)


def test_product__a_short_k_costs_the_tiles_depth() -> None:
    deep = replace(GPU, fitted=replace(KERNELS, depth=256.0))
    product = Product(2_560, 1_280, 256)
    assert product_ns(product, deep, 2) == pytest.approx(2 * product.flops / 1e12 * 1e9)


def test_product__memory_limits_small_k() -> None:
    slow = replace(GPU, memory_bytes_per_s=1e9)
    moved = 2 * (2_560 * 16 + 16 * 1_280 + 2_560 * 1_280)
    assert product_ns(Product(2_560, 1_280, 16), slow, 2) == pytest.approx(moved)


def test_products__are_those_of_the_layers_parameters() -> None:
    for model in PRESETS.values():
        products = list(layer_products(model, Plan()))
        flops = sum(one.flops for one in products)
        used = model.attention_parameters + model.active * model.expert_parameters
        assert flops == pytest.approx(2 * model.sequence * used)
        backward = sum(each.flops for one in products for each in one.backward)
        assert backward == pytest.approx(2 * flops)


def test_products__tensor_parallel_ranks_have_their_part_of_each() -> None:
    products = list(layer_products(MODEL, Plan(tensor=2, micro_batch=3)))
    # Of 8 heads of 128 and twice 2 of keys and values, half; of 2 x 4,096 hidden units, half.
    assert products == [
        Product(6_144, 768, 1_024),
        Product(6_144, 1_024, 512),
        Product(6_144, 4_096, 1_024, 1),
        Product(6_144, 1_024, 2_048, 1),
    ]
    assert head_product(MODEL, Plan(tensor=2)) == Product(2_048, 16_000, 1_024)


def test_products__experts_have_fewer_tokens() -> None:
    model = replace(MODEL, experts=8, active=2)
    *_, down = layer_products(model, Plan(data=4, expert=4))
    # Each of the GPU's 2 experts has the 2 x 2,048 / 8 tokens of 4 GPUs.
    assert down == Product(2_048, 1_024, 4_096, 2)
    # Two GPUs that have half of the tokens each, and whole experts.
    *_, down = layer_products(model, Plan(data=4, tensor=2, expert=4, expert_tensor=1))
    assert down == Product(1_024, 1_024, 4_096, 2)
    *_, down = layer_products(model, Plan(data=4, tensor=2, expert=4))
    assert down == Product(2_048, 1_024, 2_048, 2)


def test_attention__a_causal_mask_halves_it() -> None:
    # 4 x 2,048 x 2,048 x 1,024 / 2 operations at half of the peak; backward: 2.5 times as many at
    # a quarter.
    flops = 2 * 2_048**2 * 1_024
    found = attention_ns(MODEL, Plan(), GPU)
    assert found == pytest.approx((2 * flops / 1e3, 2.5 * 4 * flops / 1e3))
    fused = attention_ns(MODEL, Plan(framework="megatron"), GPU)
    assert fused == pytest.approx((flops / 1e3, 2.5 * 2 * flops / 1e3))


def test_attention__its_matrix_goes_through_memory() -> None:
    slow = replace(GPU, memory_bytes_per_s=1e12)
    whole = attention_ns(MODEL, Plan(flash=False), slow)[0]
    none = attention_ns(MODEL, Plan(flash=False), replace(slow, memory_bytes_per_s=1e18))[0]
    # 8 heads' 2,048 x 2,048 values of 2 bytes are read and written.
    assert whole - none == pytest.approx(8 * 2_048**2 * 2 * 2 / 1e3, rel=1e-3)


def test_between__moves_the_bytes_of_norms_residuals_and_activations() -> None:
    slow = replace(GPU, memory_bytes_per_s=1e9)
    # 20 for norms and residuals, 4 + 4 / 4 for rotary embedding, 6 x 4 for SwiGLU.
    fused_ns = between_ns(MODEL, Plan(framework="megatron"), slow)
    assert fused_ns == pytest.approx(49 * 2_048 * 1_024)
    assert between_ns(MODEL, Plan(), slow) == pytest.approx(2 * fused_ns)
    # Tensor parallelism splits the last two, with sequence parallelism all.
    split = Plan(framework="megatron", tensor=2)
    assert between_ns(MODEL, split, slow) == pytest.approx((20 + 29 / 2) * 2_048 * 1_024)
    split = replace(split, sequence=True)
    assert between_ns(MODEL, split, slow) == pytest.approx(fused_ns / 2)


def test_of_gpu__a_lower_clock_slows_products_only() -> None:
    whole = of_gpu(MODEL, Plan(), GPU)
    slower = of_gpu(MODEL, Plan(), replace(GPU, clock=0.5))
    between = between_ns(MODEL, Plan(), GPU)
    assert slower.forward_ns - between == pytest.approx(2 * (whole.forward_ns - between))
    assert slower.update_ns == whole.update_ns


def test_gpus__have_kernels() -> None:
    for name in names():
        known = gpu(name)
        assert known.generation in ("", *GENERATIONS)
        assert known.kernels.spread[0] < 1 < known.kernels.spread[1]


@pytest.mark.parametrize(
    ("plan", "power", "wider"),
    [
        (Plan(data=8), 1.0, ()),
        (Plan(data=2_048), 1.3, ("more than 1,024 GPUs",)),
        # n of 192 and 1,024 with 1,024 tokens on each GPU: 12 and 64 tiles of 128 x 128.
        (Plan(tensor=8, context=8), 1.5, ("small matrix products",)),
    ],
)
def test_range__is_wider_beyond_the_fit(plan: Plan, power: float, wider: tuple[str, ...]) -> None:
    found = range_of(100.0, replace(MODEL, sequence=8_192), plan, GPU)
    assert found.wider == wider
    assert (found.low_ns, found.high_ns) == pytest.approx((100 * 0.8**power, 100 * 1.25**power))


def test_range__of_a_gpu_without_a_fit_is_wider() -> None:
    other = replace(GPU, generation="", name="b300")
    found = range_of(100.0, replace(MODEL, sequence=8_192), Plan(), other)
    assert found.wider == ("no runs of b300 were fitted",)
    assert found.low_ns == pytest.approx(64.0)


def test_range__ends_later_with_queues_between_nodes() -> None:
    model = replace(MODEL, sequence=8_192)
    found = range_of(100.0, model, Plan(), GPU, queued_ns=10.0)
    assert (found.low_ns, found.high_ns) == pytest.approx((80.0, 125.0 + 10.0))
    assert found.wider == ("queues between nodes",)
    assert range_of(100.0, model, Plan(), GPU, queued_ns=0.5).wider == ()


def test_queued_ns__of_exchanges_of_trees_beside_sends_and_of_pat() -> None:
    def row(operation: str, algorithm: str, nodes: int) -> Row:
        return Row("", operation, algorithm, "", 8, nodes, 1, 1.0, 1.0, 1.0, 8.0, "between", False)

    rows = [row("all_to_all", "pairs", 2), row("all_reduce", "tree", 2)]
    rows += [row("send", "pairs", 2), row("all_gather", "ring", 2), row("all_to_all", "pairs", 1)]
    assert queued_ns(rows, Plan()) == 4.0
    assert queued_ns(rows, Plan(pipeline=2)) == 4.0 + 10.0
    assert queued_ns([row("all_gather", "pat", 64)], Plan()) == pytest.approx(8.0 * 1.7)


def test_range__of_measured_computation_is_that_of_own_steps() -> None:
    found = range_of(100.0, MODEL, Plan(), GPU, measured=True)
    assert (found.low_ns, found.high_ns) == pytest.approx((90.0, 110.0))
    assert found.wider == ()


FP8_GPU = replace(GPU, facts=Facts(dense=(("fp8", 2e12),)))


def test_fp8__products_take_half_the_time_at_twice_the_rate() -> None:
    product = Product(2_560, 1_280, 512)
    assert product_ns(product, FP8_GPU, 2, is_fp8=True) == pytest.approx(product.flops / 2e12 * 1e9)


def test_fp8__what_a_tile_costs_beside_its_steps_stays_as_long() -> None:
    """256 steps of k at 1e12, as 512 at 2e12: (512 + 512) / 2 instead of 512 + 256."""
    deep = replace(FP8_GPU, fitted=replace(KERNELS, depth=256.0))
    product = Product(2_560, 1_280, 512)
    ratio = product_ns(product, deep, 2, is_fp8=True) / product_ns(product, deep, 2)
    assert ratio == pytest.approx(512 / 768)


def test_fp8__memory_delivers_operands_of_a_byte() -> None:
    slow = replace(FP8_GPU, memory_bytes_per_s=1e6)
    product = Product(100, 200, 300)
    moved = 100 * 300 + 300 * 200 + 2 * 100 * 200
    assert product_ns(product, slow, 2, is_fp8=True) == pytest.approx(moved / 1e6 * 1e9)


def test_fp8__casts_read_two_bytes_and_write_two() -> None:
    assert cast_ns(1_000, replace(FP8_GPU, memory_bytes_per_s=1e6), 2) == pytest.approx(4e6)


def test_fp8__of_a_layer_only_linear_parts_change() -> None:
    """Attention and what is between products stay, and so do logits; casts come on top."""
    sixteen = of_gpu(MODEL, Plan(), FP8_GPU)
    eight = of_gpu(MODEL, Plan(dtype="fp8"), FP8_GPU)
    products = list(layer_products(MODEL, Plan()))
    saved_ns = sum(
        product_ns(one, FP8_GPU, 2) - product_ns(one, FP8_GPU, 2, is_fp8=True) for one in products
    )
    casts_ns = sum(cast_ns(one.m * one.k, FP8_GPU, 2) for one in products)
    assert eight.forward_ns == pytest.approx(sixteen.forward_ns - saved_ns + casts_ns)
    assert eight.backward_ns < sixteen.backward_ns
    assert eight.head_forward_ns == sixteen.head_forward_ns
    assert eight.update_ns == sixteen.update_ns


def test_fp8__with_one_efficiency_only_linear_parts_are_faster() -> None:
    known = replace(FP8_GPU, efficiency=0.5)
    sixteen, eight = (of_gpu(MODEL, Plan(dtype=one), known) for one in ("bf16", "fp8"))
    linear = 2.0 * 2_048 * (MODEL.attention_parameters + MODEL.expert_parameters)
    saved_ns = linear * (1 / 1e12 - 1 / 2e12) / 0.5 * 1e9
    assert sixteen.forward_ns - eight.forward_ns == pytest.approx(saved_ns)


def test_fp8__share_of_the_peak_is_that_of_the_generation() -> None:
    fitted = replace(FP8_GPU, fitted=replace(FP8_GPU.kernels, fp8=1.1))
    product = Product(256, 128, 1 << 20)
    ratio = product_ns(product, FP8_GPU, 2, is_fp8=True) / product_ns(product, fitted, 2, True)
    assert ratio == pytest.approx(1.1, rel=1e-6)
    assert range_of(1.0, MODEL, Plan(dtype="fp8"), fitted).wider == ()


def test_attention__takes_the_width_of_its_heads() -> None:
    wide = replace(MODEL, width=3 * MODEL.hidden)
    plain, other = (attention_ns(one, Plan(), GPU) for one in (MODEL, wide))
    assert other == pytest.approx([3 * ns for ns in plain])
    assert wide.head_size == 3 * MODEL.head_size
    assert wide.layer_flops(1.0) > MODEL.layer_flops(1.0)


def test_fp8__needs_a_rate_in_the_profile() -> None:
    with pytest.raises(PlanError, match="dtype: fp8: the profile of test has no rate in FP8"):
        of_gpu(MODEL, Plan(dtype="fp8"), GPU)
    assert "no runs in FP8 were fitted" in range_of(1.0, MODEL, Plan(dtype="fp8"), FP8_GPU).wider


def test_attention__compiled_models_have_that_of_pytorch() -> None:
    times = {one: attention_ns(MODEL, Plan(framework=one), GPU) for one in FRAMEWORKS}
    assert times["compiled"] == times["pytorch"] != times["megatron"]
    assert of_gpu(MODEL, Plan(framework="compiled"), GPU).forward_ns > 0


TPU = replace(GPU, name="tpu", sms=0, array=128)


def test_product__sizes_on_a_tpu_are_rounded_up_to_its_array() -> None:
    whole, more = Product(1_024, 256, 512), Product(1_024, 257, 513)
    assert product_ns(whole, TPU, 2) == pytest.approx(whole.flops / 1e12 * 1e9)
    # Rows pass in eights, here 264 of them; the other sizes are 1,024 and 640.
    assert product_ns(more, TPU, 2) == pytest.approx(2 * 640 * 264 * 1_024 / 1e12 * 1e9)


def test_product__few_rows_take_as_long_as_loading_the_array() -> None:
    few, many = Product(8, 4_096, 4_096), Product(128, 4_096, 4_096)
    assert product_ns(few, TPU, 2) == product_ns(many, TPU, 2)


def test_attention__heads_smaller_than_the_array_leave_a_part_of_it_idle() -> None:
    forward_ns, _ = attention_ns(MODEL, Plan(), TPU)
    assert attention_ns(MODEL, Plan(), replace(TPU, array=256))[0] == pytest.approx(2 * forward_ns)


def test_repeated__what_maxtext_keeps_does_not_run_again() -> None:
    """Parameters: queries and attention's last product h^2 each, keys and values h^2 / 4 each, the
    MLP's first product 8 h^2 and its last one 4 h^2, which never runs again."""
    products_ns = sum(product_ns(one, TPU, 2) for one in layer_products(MODEL, Plan()))
    between = between_ns(MODEL, Plan(), TPU)
    attention = attention_ns(MODEL, Plan(), TPU)[0]
    for name, share, attended in (
        ("maxtext-full", 10.5 / 14.5, True),
        ("maxtext-save_qkv_proj", 9 / 14.5, True),
        ("maxtext-save_dot_with_context_except_mlp", 8 / 14.5, False),
        ("maxtext-minimal", 0.0, True),
        ("maxtext-minimal_flash", 0.0, False),
    ):
        found = of_gpu(MODEL, Plan(kept=REMATS[name]), TPU).repeated_ns
        assert found == pytest.approx(share * products_ns + attended * attention + between), name


def test_range__is_wider_for_a_tpu_that_was_not_fitted() -> None:
    wider = {name: range_of(1e9, MODEL, Plan(), gpu(name)).wider for name in ("tpu-v5p", "tpu-v5e")}
    assert wider == {"tpu-v5p": (), "tpu-v5e": ("no runs of tpu-v5e were fitted",)}
