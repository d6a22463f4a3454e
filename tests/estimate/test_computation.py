"""Tests computation that was measured on one GPU: where it is used, and files that do not fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.estimate_steps import command as estimate_steps
from bench.step import MODELS, sizes_of
from transport.cli.estimate import command as estimate
from transport.estimate.computation import Computation, ComputationError, measured, of_gpu
from transport.estimate.curves import curves
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS, Model
from transport.estimate.networks import Link, Network, Protocol
from transport.estimate.plan import Plan, PlanError
from transport.estimate.step import Step
from transport.estimate.training import launch_ns, train

MODEL = PRESETS["gpt2"]
FAST = Network("fast", "test", Link(1e18, (Protocol("only", 0.0, 0.0, 1.0),)))
TIMES = {
    "forward_ns": 1e6,
    "backward_ns": 2.5e6,
    "head_forward_ns": 3e6,
    "head_backward_ns": 5e6,
    "embedding_forward_ns": 1e5,
    "embedding_backward_ns": 4e5,
    "update_ns": 0.01,
    "copy_ns": 0.0,
}
STEP_NS = 12 * 3.5e6 + 8e6 + 5e5 + 0.01 * MODEL.parameters


def result(folder: Path, **changed: Any) -> Path:
    file = folder / "alone.json"
    row = sizes_of("gpt2", 8) | TIMES | changed
    file.write_text(json.dumps({"bench": "step", "rows": [row]}))
    return file


def test_measured__the_step_of_one_gpu_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    plan = Plan(micro_batch=8, global_batch=8)
    computed = measured(result(tmp_path), MODEL, plan)
    assert train(MODEL, plan, gpu("h200"), FAST, computed).step_ns == pytest.approx(STEP_NS)


def test_measured__recomputation_is_one_forward_pass_of_each_layer_more(tmp_path: Path) -> None:
    plan = Plan(micro_batch=8, global_batch=8, recompute=True)
    computed = measured(result(tmp_path), MODEL, plan)
    step_ns = train(MODEL, plan, gpu("h200"), FAST, computed).step_ns
    assert step_ns == pytest.approx(STEP_NS + 12 * 1e6)


def test_measured__sharded_ranks_update_their_part_of_the_parameters(tmp_path: Path) -> None:
    plan = Plan(data=4, zero=3, micro_batch=8, global_batch=32)
    computed = measured(result(tmp_path), MODEL, plan)
    step_ns = train(MODEL, plan, gpu("h200"), FAST, computed).step_ns
    assert step_ns == pytest.approx(STEP_NS - 0.75 * 0.01 * MODEL.parameters, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (MODEL, Plan(micro_batch=4), "that of gpt2 has micro_batch 8, not 4"),
        (replace(MODEL, hidden=1_536), Plan(micro_batch=8), "has hidden 768, not 1536"),
        (replace(MODEL, kv_heads=1), Plan(micro_batch=8), "has kv_heads 12, not 1"),
        (replace(MODEL, experts=8, active=2), Plan(micro_batch=8), "experts 1, not 8, active 1"),
        (MODEL, Plan(micro_batch=8, flash=False), "has flash True, not False"),
        (MODEL, Plan(micro_batch=8, value_bytes=4), "has value_bytes 2, not 4"),
    ],
)
def test_measured__what_differs_is_named(
    tmp_path: Path, model: Model, plan: Plan, said: str
) -> None:
    with pytest.raises(ComputationError, match=said):
        measured(result(tmp_path), model, plan)


def test_measured__layers_are_alike(tmp_path: Path) -> None:
    deeper = replace(MODEL, layers=24)
    assert measured(result(tmp_path), deeper, Plan(micro_batch=8)).forward_ns == 1e6


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 0}, "layers: 0"),
        ({"layers": "x"}, "layers: 'x'"),
        ({"layers": None}, "layers"),
        ({"forward_ns": 1e308}, "forward_ns: 1e.308: must be 0 to 1e.15"),
        ({"forward_ns": 0, "backward_ns": 0}, "a layer takes time"),
    ],
)
def test_measured__impossible_rows_are_one_line(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(ComputationError, match=said):
        measured(result(tmp_path, **changed), MODEL, Plan(micro_batch=8))


@pytest.mark.parametrize("plan", [Plan(tensor=2), Plan(context=2)])
def test_measured__a_gpu_that_computes_parts_of_layers_was_not_measured(
    tmp_path: Path, plan: Plan
) -> None:
    with pytest.raises(PlanError, match="2: the measured GPU computed whole layers"):
        measured(result(tmp_path), MODEL, plan)


@pytest.mark.parametrize("value", [None, "1", True, -1, float("nan"), float("inf")])
def test_measured__a_time_that_is_none_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(ComputationError, match="backward_ns"):
        measured(result(tmp_path, backward_ns=value), MODEL, Plan(micro_batch=8))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"rows": ["forward_ns"]}', '{"rows": 1}', '{"rows": [1]}', "\0", "[" * 9999],
)
def test_measured__any_other_file_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ComputationError, match="is not a result of python -m bench step"):
        measured(file, MODEL, Plan())


def test_bench__takes_enough_sequences_to_keep_a_gpu_busy() -> None:
    sequences = {name: sizes_of(name)["micro_batch"] for name in MODELS}
    assert sequences == {"gpt2-medium": 32, "gpt2-xl": 16, "megatron-3.6b": 4}


def test_measured__a_model_wrapped_as_the_plan_wraps_it_counts(tmp_path: Path) -> None:
    rows = [
        sizes_of("gpt2", 8) | TIMES | {"parallel": kind, "forward_ns": ns}
        for kind, ns in (("fsdp", 3.0), ("alone", 1.0), ("ddp", 2.0))
    ]
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"rows": rows}))
    plans = (Plan(micro_batch=8), Plan(micro_batch=8, data=2), Plan(micro_batch=8, data=2, zero=3))
    assert [measured(file, MODEL, plan).forward_ns for plan in plans] == [1.0, 2.0, 3.0]
    file.write_text(json.dumps({"rows": rows[1:2]}))
    assert [measured(file, MODEL, plan).forward_ns for plan in plans] == [1.0, 1.0, 1.0]


def test_measured__a_step_takes_at_least_what_the_host_needs_to_launch_it(tmp_path: Path) -> None:
    plan = Plan(micro_batch=8, global_batch=8)
    slow = measured(result(tmp_path, host_ns=2 * STEP_NS), MODEL, plan)
    found = train(MODEL, plan, gpu("h200"), FAST, slow)
    assert found.step_ns == pytest.approx(2 * STEP_NS)
    assert found.host_ns == pytest.approx(STEP_NS)
    assert found.bottleneck == "the host, which launches kernels"
    stages = replace(plan, pipeline=2, global_batch=16)  # each launches half of the layers
    assert launch_ns(Step(MODEL, stages, slow, FAST)) == pytest.approx(2 * STEP_NS)
    gpus, *_ = curves(MODEL, plan, slow, FAST)
    assert gpus.points[0].step_ns == pytest.approx(2 * STEP_NS)
    deeper = replace(MODEL, layers=6)
    assert measured(tmp_path / "alone.json", deeper, plan).host_ns == pytest.approx(STEP_NS)


def test_efficiency__a_backward_pass_takes_twice_a_forward_pass() -> None:
    found = of_gpu(MODEL, Plan(), gpu("h200", 0.5))
    assert found == Computation(
        found.forward_ns,
        2 * found.forward_ns,
        found.head_forward_ns,
        2 * found.head_forward_ns,
        found.update_ns,
        found.copy_ns,
    )


def test_command__takes_the_measured_computation_and_says_so(tmp_path: Path) -> None:
    words = ["train", "gpt2", "--micro-batch", "8", "--computation", str(result(tmp_path))]
    done = CliRunner().invoke(estimate, words)
    assert done.exit_code == 0, done.output
    assert "computation as measured on one GPU: alone.json" in done.output
    assert "fitted to published runs" not in done.output
    done = CliRunner().invoke(estimate, [*words, "--efficiency", "0.5"])
    assert done.exit_code == 2
    assert "--efficiency does not apply" in done.output


def test_steps__estimates_are_compared_with_what_was_measured_later(tmp_path: Path) -> None:
    network = tmp_path / "weft.toml"
    network.write_text(
        'name = "n"\nsource = "s"\n[between]\nbytes_per_s = 1e10\n'
        '[[between.protocols]]\nname = "p"\nstep_ns = 1000\n'
    )
    predicted, steps = tmp_path / "predicted.json", tmp_path / "steps.json"
    words = ["--computation", result(tmp_path), "--network", f"weft={network}", "--json", predicted]
    done = CliRunner().invoke(estimate_steps, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    rows = json.loads(predicted.read_text())["rows"]
    assert [row["parallel"] for row in rows] == ["ddp", "fsdp"]
    slower = [
        sizes_of("gpt2", 8) | row | {"step_ms": 1.25 * row["step_ms"], "spread": 0.0}
        for row in rows
    ]
    steps.write_text(json.dumps({"bench": "step", "gpus": 2, "rows": slower}))
    done = CliRunner().invoke(
        estimate_steps, ["--predicted", str(predicted), "--measured", str(steps)]
    )
    assert done.exit_code == 0, done.output
    assert "error 20.0 % in the median, 20.0 % at most; 0 of 2 within 5 %" in done.output
    steps.write_text(json.dumps({"bench": "step", "gpus": 4, "rows": slower}))
    both = ["--predicted", str(predicted), "--measured", str(steps)]
    done = CliRunner().invoke(estimate_steps, both)
    assert "gpus: the estimates are for 2, the measured steps for 4" in done.output
    done = CliRunner().invoke(estimate_steps, ["--predicted", str(steps), *both[2:]])
    assert "is a result of bench step, not of estimate_steps" in done.output
    done = CliRunner().invoke(estimate_steps, ["--predicted", str(predicted)])
    assert done.exit_code == 2
    assert "give --computation and --network, or" in done.output
