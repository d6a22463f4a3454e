"""Tests what configuration files become: sizes of models, and options of a plan."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.config_files import (
    DEEPSEEK_V3,
    DEEPSPEED,
    FALCON,
    GPT2,
    LLAMA2,
    LLAMA3_70B,
    OTHERS,
    PUBLISHED,
    QWEN15_MOE,
    SCRIPT,
    TITAN,
)
from transport.estimate.configs import ConfigError, Given, read
from transport.estimate.models import PRESETS, Model, resized


def given(tmp_path: Path, content: Any, name: str = "config.json", **more: Any) -> Given:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read(file, more.pop("sizes", {}), **more)


def model(tmp_path: Path, content: Any, **more: Any) -> Model:
    found = given(tmp_path, content, **more).model
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "billions"),
    [*PUBLISHED, *OTHERS],
    ids=lambda one: one["model_type"] if isinstance(one, dict) else str(one),
)
def test_huggingface__parameters_are_the_published_ones(
    tmp_path: Path, config: dict[str, Any], billions: float
) -> None:
    """Within 1 %: norms and biases are left out, and published numbers are rounded."""
    assert model(tmp_path, config).parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_huggingface__sizes_are_those_of_the_presets(tmp_path: Path) -> None:
    wanted = ((LLAMA2, "llama2-7b", 4_096), (LLAMA3_70B, "llama3-70b", 8_192))
    for config, name, sequence in wanted:
        found, preset = model(tmp_path, config), PRESETS[name]
        same = vars(preset) | {"name": "llama", "kv_heads": preset.kv_heads or preset.heads}
        assert vars(found) == same
        assert found.sequence == sequence
    # The preset counts two norms of the compressed queries and keys, too.
    latent = PRESETS["deepseek-v3"].attention - 1_536 - 512
    assert model(tmp_path, DEEPSEEK_V3).attention == latent


def test_preset__deepseek_by_hand() -> None:
    """58 layers of 256 experts and a shared one, three with an MLP."""
    model = PRESETS["deepseek-v3"]
    expert, mlp, ends = 3 * 7_168 * 2_048, 3 * 7_168 * 18_432, 2 * 129_280 * 7_168
    assert model.parameters == 61 * model.attention + 58 * 257 * expert + 3 * mlp + ends
    four = resized(model, {"layers": 4})
    assert four.parameters == 4 * (model.attention + 257 * expert) + ends
    assert resized(model, {"sequence": 8}).parameters == model.parameters


def test_huggingface__parameters_by_hand(tmp_path: Path) -> None:
    """GPT-2: 12 layers of 12 x 768^2, the embedding and the positions.

    Qwen1.5-MoE: 4 x 2048^2 of attention, 60 experts and shared ones of 3 x 2048 x hidden size.
    """
    assert model(tmp_path, GPT2).parameters == 12 * 12 * 768**2 + (50_257 + 1_024) * 768
    layer = 4 * 2_048**2 + 3 * 2_048 * (60 * 1_408 + 5_632)
    found = model(tmp_path, QWEN15_MOE)
    assert found.parameters == 24 * layer + 2 * 151_936 * 2_048
    assert (found.active, found.experts) == (4 + 4, 60)  # shared ones are as large as four


def test_huggingface__falcon_has_one_head_of_keys(tmp_path: Path) -> None:
    assert model(tmp_path, FALCON).kv_heads == 1
    assert model(tmp_path, FALCON | {"new_decoder_architecture": True}).kv_heads == 71


def test_huggingface__long_sequences_are_not_assumed(tmp_path: Path) -> None:
    found = given(tmp_path, LLAMA3_70B)
    assert found.notes == (
        "the model takes up to 131,072 tokens: sequences of 8,192 are assumed: --sequence",
    )
    assert model(tmp_path, LLAMA3_70B, sizes={"sequence": 65_536}).sequence == 65_536


def test_huggingface__sizes_of_the_command_line_count_instead(tmp_path: Path) -> None:
    config = {key: value for key, value in GPT2.items() if key != "vocab_size"}
    found = model(tmp_path, config, sizes={"vocabulary": 100, "hidden": 96})
    assert (found.vocabulary, found.hidden, found.ffn) == (100, 96, 384)


def test_huggingface__a_model_of_text_inside_of_another(tmp_path: Path) -> None:
    found = given(tmp_path, {"model_type": "llava", "text_config": LLAMA2, "vision_config": {}})
    assert found.model is not None
    assert found.model.layers == 32
    assert "text_config is estimated" in found.notes[0]


def test_huggingface__says_what_it_took_and_what_it_did_not(tmp_path: Path) -> None:
    found = given(tmp_path, LLAMA2)
    assert found.taken["hidden_size"] == "hidden 4,096"
    assert found.unused == ("rope_theta",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": None, "vocab_size": None}, "num_hidden_layers, vocab_size: add it"),
        ({"hidden_size": "4096"}, "hidden_size: '4096' is no whole number"),
        ({"hidden_size": True}, "hidden_size: True is no whole number"),
        ({"hidden_size": 1.5}, "hidden_size: 1.5 is no whole number"),
        ({"hidden_size": 0}, "hidden_size: 0: must be 1 to"),
        ({"hidden_size": 1 << 70}, "a number of more than 64 bits: must be 1 to"),
        ({"num_hidden_layers": 5_000}, "5,000 layers: at most 4,096"),
        ({"tie_word_embeddings": 1}, "neither true nor false"),
        ({"model_type": "lama"}, "did you mean llama?"),
        ({"model_type": None}, "is not known: bloom"),
        ({"num_local_experts": 8}, "without num_experts_per_tok"),
        ({"kv_lora_rank": 512}, "latent attention without qk_nope_head_dim"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": "all"},
            "is no list of layers",
        ),
    ],
)
def test_huggingface__bad_values(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, LLAMA2 | change)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")


def test_megatron__a_script(tmp_path: Path) -> None:
    """128 GPUs, 16 of which share a model: 8 replicas; 80 layers / 2 stages / 10: 4 chunks."""
    found = given(tmp_path, SCRIPT, "pretrain.sh")
    assert found.model is not None
    same = vars(PRESETS["llama3-70b"]) | {"name": "megatron", "sequence": 4_096}
    assert vars(found.model) == same
    assert found.options == {
        "framework": "megatron",
        "tensor": 8,
        "pipeline": 2,
        "interleave": 4,
        "data": 8,
        "gpus_per_node": 8,
        "micro_batch": 1,
        "batch": 512,
        "split_sequence": True,
        "zero": 1,
        "recompute": "selective",
        "value_bytes": 2,
        "gradient_bytes": 4,
    }
    assert "--lr" in found.unused
    assert (found.notes, found.gpus) == ((), 128)


def test_megatron__sizes_of_options_are_not_taken_from_the_file(tmp_path: Path) -> None:
    found = given(tmp_path, SCRIPT, "pretrain.sh", sizes={"layers": 40, "hidden": 4_096})
    assert found.model is not None
    assert (found.model.layers, found.model.hidden, found.options["interleave"]) == (40, 4_096, 2)
    assert {"num-layers", "hidden-size"}.isdisjoint(found.taken)
    assert {"--num-layers", "--hidden-size"} <= set(found.unused)


def test_megatron__flags_at_the_end_of_a_list_have_no_value(tmp_path: Path) -> None:
    """As in examples of Megatron-LM: arrays, quoted texts, and words behind the last flag."""
    script = """
MODEL_ARGS=(
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16
    --vocab-size 100 --swiglu
)
PARALLEL_ARGS="
    --tensor-model-parallel-size $TP
    --sequence-parallel"
DATA_ARGS="--num-experts 8 --moe-layer-freq ([0]+[1,1]*1)"
torchrun pretrain_gpt.py ${MODEL_ARGS[@]} --bf16 train
"""
    found = given(tmp_path, script, "train.sh")
    assert found.model is not None
    assert (found.model.gated, found.model.experts) == (True, 8)
    assert found.options["split_sequence"]
    assert "the script does not set the variables of --tensor-model-parallel-size ($TP)" in (
        *found.notes,
    )
    assert found.notes[0].startswith("1 of 2 layers have no experts")


@pytest.mark.parametrize(
    "lines",
    [
        "TP=${TP:-4}; PP=2",
        "TP=4 PP=2",
        "export TP=4 PP=2",
        "TP=2\nTP=$((TP * 3 - 2)) && PP=$((TP/2))",
        "TP=4 PP=2 torchrun x",
    ],
)
def test_megatron__all_assignments_of_a_line(tmp_path: Path, lines: str) -> None:
    found = given(tmp_path, SCRIPT.replace("TP=8\nPP=2", lines), "run.sh")
    assert (found.options["tensor"], found.options["pipeline"]) == (4, 2)
    assert not any("variables" in note or "branch" in note for note in found.notes)


@pytest.mark.parametrize(
    ("nodes", "each", "options", "says"),
    [
        ("1:4", "8", {"data": 2, "gpus_per_node": 8}, "--nnodes 1:4: 4 nodes, the most, count"),
        ("4", "gpu", {}, "--nproc-per-node gpu: how many a node has is not in the file"),
        ("4", "auto", {}, "the number of GPUs is not in the file: --data"),
    ],
)
def test_megatron__words_and_ranges_of_torchrun(
    tmp_path: Path, nodes: str, each: str, options: dict[str, int], says: str
) -> None:
    text = SCRIPT.replace("--nnodes $NNODES", f"--nnodes={nodes}")
    text = text.replace("--nproc_per_node $GPUS_PER_NODE", f"--nproc-per-node={each}")
    found = given(tmp_path, text, "run.sh")
    launched = {key: found.options.get(key) for key in ("data", "gpus_per_node")}
    assert {key: one for key, one in launched.items() if one} == options
    assert any(note.startswith(says) for note in found.notes)


@pytest.mark.parametrize("wrong", ["4:1", "0:4", "1:4:8", "some"])
def test_megatron__wrong_nodes(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"run.sh: --nnodes: '?{wrong}"):
        given(tmp_path, SCRIPT.replace("--nnodes $NNODES", f"--nnodes={wrong}"), "run.sh")


def test_megatron__layers_by_a_sum(tmp_path: Path) -> None:
    text = "L=12\nL=$((L+12))\n" + SCRIPT.replace("--num-layers 80", "--num-layers $L")
    text = text.replace("--num-layers-per-virtual-pipeline-stage 10", "")
    assert model(tmp_path, text, name="run.sh").layers == 24


@pytest.mark.parametrize("wrong", ["9**9**9", "1/0", "L+", "-" * 150, "1" * 190 + "x", "L " * 500])
def test_megatron__other_arithmetic_is_left_out(tmp_path: Path, wrong: str) -> None:
    text = f"L=12\nL=$(({wrong}))\n" + SCRIPT.replace("--num-layers 80", "--num-layers $L")
    with pytest.raises(ConfigError, match="does not set the variables of --num-layers"):
        given(tmp_path, text, "run.sh")


LAST = "of several values in the script the last one counts: "
ALL = "only in branches of the script, which all count: "


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ("if [ $X ]; then\nTP=8\nelse\nTP=4\nfi\nPP=2", f"{LAST}TP 8 (line 6), 4 (line 8)"),
        ("case $X in\n  8) TP=8;;\n  *) TP=4;;\nesac\nPP=2", f"{LAST}TP 8 (line 6), 4 (line 7)"),
        ('[ "$X" ] && TP=8 || TP=4\nPP=2', f"{LAST}TP 8 (line 5), 4 (line 5)"),
        ("TP=8\ntest $X && TP=4\nPP=2", f"{LAST}TP 8 (line 5), 4 (line 6)"),
        ("TP=8\nif [ $X ]; then\nTP=4\nfi\nPP=2", f"{LAST}TP 8 (line 5), 4 (line 7)"),
        ("if [ $X ]; then TP=4; PP=2; fi", f"{ALL}TP 4 (line 5); PP 2 (line 5)"),
    ],
)
def test_megatron__variables_that_branches_decide_are_noted(
    tmp_path: Path, lines: str, note: str
) -> None:
    found = given(tmp_path, SCRIPT.replace("TP=8\nPP=2", lines), "run.sh")
    assert (found.options["tensor"], found.options["pipeline"]) == (4, 2)
    assert [one for one in found.notes if "script" in one] == [note]


def test_megatron__arguments_that_branches_decide_are_noted(tmp_path: Path) -> None:
    """Lines are those of the file, also below comments and continued lines."""
    script = """#!/bin/bash
# if [ $A ]; then
if [[ $SIZE == 7b ]]; then
  SIZE="--num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --lr 1"
elif [[ $SIZE == 13b ]]; then
  SIZE="--num-layers 40 --hidden-size 5120 --num-attention-heads 32 --lr 2"
fi
RECOMPUTE=full
[ $SMALL ] && RECOMPUTE=selective
if [ $FP8 ]; then MORE="--fp8-format hybrid --swiglu"; fi
torchrun pretrain.py $SIZE $MORE --seq-length 2048 --vocab-size 32000 --micro-batch-size 1 \\
  --recompute-granularity $RECOMPUTE
python evaluate.py --micro-batch-size 8
"""
    found = given(tmp_path, script, "run.sh")
    assert found.notes[-2:] == (
        f"{LAST}--num-layers 32 (line 4), 40 (line 7); --hidden-size 4096 (line 4), 5120 (line 7); "
        "--micro-batch-size 1 (line 12), 8 (line 14); RECOMPUTE full (line 9), selective (line 10)",
        f"{ALL}--num-attention-heads 32 (line 7); --fp8-format hybrid (line 11); "
        "--swiglu (line 11)",
    )
    assert found.options["recompute"] == "selective"


def test_megatron__a_variable_that_is_set_again_is_not_noted(tmp_path: Path) -> None:
    found = given(tmp_path, SCRIPT.replace("TP=8\n", "TP=4\nTP=8\nLR=1&&PP=1\nPP=2\n"), "run.sh")
    assert (found.notes, found.gpus) == ((), 128)


def test_megatron__what_counts_where_a_variable_is_not_set(tmp_path: Path) -> None:
    found = given(tmp_path, SCRIPT.replace("TP=8\n", ""), "run.sh")
    assert "not in the file, so options or their defaults: --tensor (default: 1)" in found.notes


def test_megatron__yaml_and_what_it_prints_at_start_say_the_same(tmp_path: Path) -> None:
    yaml = """
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 1024  # small
  --num-attention-heads: 16
  --seq-length: 1024
  --vocab-size: 50304
  --swiglu: false
  --tensor-model-parallel-size: 2
  --bf16: true
"""
    printed = """using world size: 8
  num_layers .......................... 24
  hidden_size ......................... 1024
  num_attention_heads ................. 16
  num_query_groups .................... 1
  group_query_attention ............... False
  num_experts ......................... None
  seq_length .......................... 1024
  max_position_embeddings ............. None
  padded_vocab_size ................... 50304
  swiglu .............................. False
  tensor_model_parallel_size .......... 2
  bf16 ................................ True
  world_size .......................... 8
"""
    one = given(tmp_path, yaml, "model_config.yaml")
    other = given(tmp_path, printed, "out.log")
    assert one.model == other.model
    assert one.model is not None
    assert (one.model.ffn, one.model.kv_heads, one.model.tied) == (4_096, 0, True)
    assert other.options == one.options | {"data": 4}


def test_megatron__gated_width_and_latent_attention_with_dense_layers(tmp_path: Path) -> None:
    """DeepSeek-V3 as arguments: the same attention and the same number of parameters."""
    arguments = """--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --seq-length 4096
        --vocab-size 129280 --ffn-hidden-size 18432 --swiglu --position-embedding-type rope
        --untie-embeddings-and-output-weights --multi-latent-attention --q-lora-rank 1536
        --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
        --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048
        --moe-shared-expert-intermediate-size 2048 --moe-layer-freq '([0]*3+[1]*58)'"""
    found = model(tmp_path, arguments, name="args.txt")
    same = model(tmp_path, DEEPSEEK_V3)
    assert (found.attention, found.parameters) == (same.attention, same.parameters)
    small = "--num-layers 2 --hidden-size 1024 --num-attention-heads 16 --seq-length 8 --swiglu"
    assert model(tmp_path, small, name="args.txt", sizes={"vocabulary": 10}).ffn == 2_688


def test_megatron__gathers_beside_the_forward_pass(tmp_path: Path) -> None:
    """Without the distributed optimizer there is nothing to gather."""
    for optimizer, overlaps in (("--use-distributed-optimizer", True), ("", False)):
        more = f"{optimizer} --overlap-param-gather"
        text = SCRIPT.replace("--use-distributed-optimizer", more)
        options = given(tmp_path, text, "pretrain.sh").options
        assert options.get("overlap_gather", False) == overlaps


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--num-layers 80", "--num-layers $LAYERS"), "without --num-layers: add it, or give"),
        (("--num-layers 80", "--num-layers $LAYERS"), "variables of --num-layers ($LAYERS)"),
        (("--vocab-size 128256", ""), "without --padded-vocab-size: add it, or give --vocabulary"),
        (("--hidden-size 8192", "--hidden-size big"), "--hidden-size: 'big' is no whole number"),
        (("-stage 10", "-stage 7"), "80 layers of 2 stages cannot be split so"),
        (("--bf16", "--bf16 --optimizer-cpu-offload"), "--optimizer-cpu-offload is not estimated"),
        (("--num-layers 80", "--num-layers 99999999999999999999"), "is no whole number"),
    ],
)
def test_megatron__bad_values(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, SCRIPT.replace(*change), "pretrain.sh")
    assert says in str(caught.value)


def test_torchtitan__model_and_plan(tmp_path: Path) -> None:
    """HSDP: 4 replicas of 8 shards. Two sequences of each of the 32 are one microbatch."""
    found = given(tmp_path, TITAN, "llama3_8b.toml")
    assert found.model == PRESETS["llama3-8b"]
    assert found.accumulation == 1
    assert found.options == {
        "tensor": 2,
        "split_sequence": True,
        "overlap": True,
        "zero": 3,
        "data": 32,
        "shard": 8,
        "micro_batch": 2,
        "recompute": "selective-op",
        "framework": "compiled",
        "gradient_bytes": 4,
    }
    assert found.unused == ("training.steps",)


def test_torchtitan__pipelines_and_the_rest_of_the_gpus(tmp_path: Path) -> None:
    text = TITAN.replace("_shard_degree = 8", "_shard_degree = -1").replace(
        "tensor_parallel_degree = 2",
        'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"',
    )
    found = given(
        tmp_path, text.replace("_replicate_degree = 4", "_replicate_degree = 1"), "a.toml"
    )
    assert {"data", "shard"}.isdisjoint(found.options)
    assert "--data says how many" in found.notes[0]
    assert (found.options["pipeline"], found.options["interleave"]) == (4, 2)
    assert (found.options["micro_batch"], found.accumulation) == (1, 2)


def interleaved(**more: object) -> str:
    """torchtitan's file of 32 layers on 4 stages."""
    keys = {
        "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        **{f"pipeline_parallel_{name}": value for name, value in more.items()},
    }
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    return TITAN.replace("tensor_parallel_degree = 2", lines)


@pytest.mark.parametrize(
    ("more", "chunks"),
    [
        ({"layers_per_stage": 3}, 3),  # 34 layers with the ends: 12 chunks
        ({"layers_per_stage": 4, "first_stage_less_layers": 0, "last_stage_less_layers": 0}, 2),
    ],
)
def test_torchtitan__layers_of_a_stage(tmp_path: Path, more: dict[str, int], chunks: int) -> None:
    found = given(tmp_path, interleaved(**more), "a.toml")
    assert found.options["interleave"] == chunks
    assert not any("chunks" in note for note in found.notes)
    assert not any("stage" in key for key in found.unused)


def test_torchtitan__layers_of_a_stage_that_are_not_used(tmp_path: Path) -> None:
    name = "parallelism.pipeline_parallel_layers_per_stage"
    text = interleaved(layers_per_stage=3)
    found = given(tmp_path, text, "a.toml", has_model=True)
    said = f"{name} 3 is not used, as the layers of the model are not in it: --interleave"
    assert said in found.notes
    assert found.options["interleave"] == 2
    single = given(tmp_path, text.replace("Interleaved1F1B", "1F1B"), "a.toml")
    assert f"{name} 3 is not used, as stages have one chunk: --interleave" in single.notes
    with pytest.raises(ConfigError, match="5: 7 chunks cannot be split among 4 stages"):
        given(tmp_path, interleaved(layers_per_stage=5), "a.toml")


@pytest.mark.parametrize("name", ["float8", "quantize.linear.float8", "quantize.linear.mx"])
def test_torchtitan__converters_to_fp8(tmp_path: Path, name: str) -> None:
    text = TITAN.replace('flavor = "8B"', f'flavor = "8B"\nconverters = ["{name}"]')
    assert given(tmp_path, text, "a.toml").options["dtype"] == "fp8"
    assert "dtype" not in given(tmp_path, text.replace(name, "other"), "a.toml").options
    experts = given(tmp_path, text.replace(name, "quantize.grouped_mm.float8"), "a.toml")
    assert "FP8 in all linear parts" in experts.notes[0]


@pytest.mark.parametrize(
    ("option", "dtype"),
    [
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-hybrid", "fp8"),
        ("--fp8-format none", None),
        ("--fp4-format e2m1", "fp8"),
        ("--no-fp8-wgrad", None),
    ],
)
def test_megatron__fp8(tmp_path: Path, option: str, dtype: str | None) -> None:
    found = given(tmp_path, SCRIPT.replace("--bf16", f"--bf16 {option}"), "a.sh")
    assert found.options.get("dtype") == dtype
    is_noted = "FP4 has no estimate: it is taken as FP8" in found.notes
    assert is_noted == ("fp4" in option)
    yaml = "num_layers: 2\nfp8: false\n"
    assert "dtype" not in given(tmp_path, yaml, "a.yaml", has_model=True).options


def test_deepspeed__ms_amp_is_fp8(tmp_path: Path) -> None:
    found = given(tmp_path, DEEPSPEED | {"msamp": {"enabled": True}}, "ds.json")
    assert found.options["dtype"] == "fp8"
    assert any("MS-AMP" in note for note in found.notes)


def test_torchtitan__unknown_flavors_need_a_model(tmp_path: Path) -> None:
    text = TITAN.replace('"8B"', '"debugmodel"')
    with pytest.raises(ConfigError, match=r"known are llama3 8B.*--config"):
        given(tmp_path, text, "debug.toml")
    assert given(tmp_path, text, "debug.toml", has_model=True).model is None


def test_deepspeed__batches_precision_and_buckets(tmp_path: Path) -> None:
    """256 / (2 x 2) are 64 replicas; buckets are of elements, 2 bytes each."""
    found = given(tmp_path, DEEPSPEED, "ds.json")
    assert found.model is None
    assert found.options == {
        "zero": 3,
        "value_bytes": 2,
        "bucket": "1000000000 B",
        "micro_batch": 2,
        "batch": 256,
        "data": 64,
    }
    assert found.notes[0] == "auto is not in the file: gradient_clipping"
    assert "zero_optimization.overlap_comm" in found.unused


def test_deepspeed__without_the_batch_of_a_step(tmp_path: Path) -> None:
    config = {key: value for key, value in DEEPSPEED.items() if key != "train_batch_size"}
    found = given(tmp_path, config, "ds.json")
    assert found.accumulation == 2
    assert "batch" not in found.options
    assert found.notes[-1] == "the number of GPUs is not in the file: --data"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "zero_optimization.offload_optimizer to 'cpu' is not estimated: remove it",
        ),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: 4: must be 0 to 3"),
        ({"zero_optimization": {"stage": "3"}}, "'3' is no whole number"),
        ({"train_batch_size": 255}, "must be a multiple of"),
        ({"communication_data_type": "int4"}, "communication_data_type: 'int4' is not known"),
        ({"bf16": {"enabled": "yes"}}, "bf16.enabled: 'yes' is neither true nor false"),
    ],
)
def test_deepspeed__bad_values(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, DEEPSPEED | change, "ds.json")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", "{", "a.json: is no JSON"),
        ("a.json", "[1]", "is no JSON object"),
        ("a.json", "[" * 100_000, "is no JSON"),
        ("a.json", '{"a": 1}', "has neither model_type"),
        ("a.json", '{"model_type": "llama", "hidden_size": ' + "9" * 5_000 + "}", "is no JSON"),
        ("a.toml", "[model", "is no TOML"),
        ("a.toml", "[other]\nx = 1", "has no section"),
        ("a.sh", "echo hello", "has no argument of Megatron-LM"),
        ("a.sh", "", "is empty: give one of config.json of Hugging Face"),
        ("a.json", " ", "is empty: give one of"),
    ],
)
def test_files__bad_ones(tmp_path: Path, name: str, content: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(tmp_path, content, name)
    assert says in str(caught.value)


def test_files__no_text_too_large_and_missing(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for data, says in ((b"\xff\xfe", "is no text"), (b" " * (5 << 20), "larger than 4 MiB")):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=says):
            read(file, {})
    with pytest.raises(ConfigError, match=f"{tmp_path}/none.json: cannot be read"):
        read(tmp_path / "none.json", {})
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path}/model: the folder has no config.json"):
        read(tmp_path / "model", {})


def test_files__a_folder_stands_for_its_configuration(tmp_path: Path) -> None:
    given(tmp_path, LLAMA2)
    found = read(tmp_path, {}).model
    assert found is not None
    assert found.layers == 32
