"""Reads a model and a plan from arguments of Megatron-LM.

Names and defaults are those of github.com/NVIDIA/Megatron-LM (megatron/training/arguments.py).
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from transport.estimate.configs.arguments import (
    OFF,
    ON,
    arguments_of,
    is_script,
    places_of,
    variables_of,
)
from transport.estimate.configs.given import ConfigError, Given, Keys, Sizes, shown
from transport.estimate.configs.layers import (
    Experts,
    Latent,
    dense_layers,
    with_experts,
    with_head_size,
)
from transport.estimate.models import Model

NAMES = {
    "layers": ("num_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "sequence": ("seq_length", "encoder_seq_length"),
    "vocabulary": ("padded_vocab_size", "vocab_size"),
}
DEGREES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
    "micro_batch": "micro_batch_size",
    "batch": "global_batch_size",
}
UNDECIDED_MAX = 24  # arguments and variables that a note lists
OFFLOADS = ("optimizer_cpu_offload", "cpu_offloading", "fine_grained_activation_offloading")
_RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*([0-9]{1,4}))?")
_SPAN = re.compile(r"([0-9]{1,7}):([0-9]{1,7})")
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def is_megatron(text: str, is_yaml: bool) -> bool:
    found = arguments_of(text, is_yaml)
    return any(name in found for name in (*DEGREES.values(), "num_layers"))


def of_megatron(text: str, is_yaml: bool, sizes: Sizes, has_model: bool) -> Given:
    """The plan, and the model unless another one counts. ConfigError."""
    notes: list[str] = []
    values = {name: _value(one) for name, one in arguments_of(text, is_yaml).items()}
    unknown = [name for name, one in values.items() if isinstance(one, str) and "$" in one]
    variables = {name: str(values[name]) for name in unknown}
    values = {name: one for name, one in values.items() if name not in unknown}
    keys = Keys({name.replace("_", "-"): one for name, one in values.items()}, "--{}")
    args = _Arguments(keys)
    for name in OFFLOADS:
        if args.flag(name):
            raise ConfigError(
                f"{_spelled(name)} is not estimated: remove it to estimate the step without "
                "offloading"
            )
    options: dict[str, Any] = {"framework": "megatron"}
    layers = sizes.get("layers") or args.number("num_layers", "layers")
    try:
        model = None if has_model else _model(args, sizes, notes)
    except ConfigError as error:
        raise ConfigError(f"{error}{_unset(keys, variables)}") from None
    gpus = _plan(args, options, (model.layers if model is not None else layers) or 0, notes)
    if model is not None and model.experts == 1:
        options.pop("expert_tensor", None)
    if unset := _unset(keys, variables):
        notes.append(unset.removeprefix("; "))
        defaults = [f"--{_option(one)}" for one, name in DEGREES.items() if name in variables]
        if defaults:
            notes.append(f"not in the file, so options or their defaults: {', '.join(defaults)}")
    if is_script(text, is_yaml):
        notes += _undecided(text, keys)
    said = keys.taken, keys.unused, tuple(notes)
    return Given("Megatron-LM", model, options, None, *said, gpus)


class _Arguments:
    """Arguments by their names with underscores."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def number(self, name: str, becomes: str, least: int = 1) -> int | None:
        return self.keys.number(name.replace("_", "-"), name=becomes, least=least)

    def flag(self, name: str, becomes: str = "", default: bool = False) -> bool:
        key = name.replace("_", "-")
        # A flag takes no value: what follows it in a script is another word.
        is_word = isinstance(self.keys.value(key), str)
        found = is_word or self.keys.flag(key, default)
        if found and becomes and key in self.keys:
            self.keys.take(key, becomes, ON)
        return found

    def text(self, name: str) -> str:
        found = self.keys.value(name.replace("_", "-"))
        return "" if found is None else str(found)


def _unset(keys: Keys, variables: dict[str, str]) -> str:
    """What to say of arguments that count, and whose variables the script does not set."""
    named = [
        f"{_spelled(name)} ({value[:60]})"
        for name, value in variables.items()
        if keys.is_asked(name.replace("_", "-"))
    ]
    return f"; the script does not set the variables of {', '.join(named)}" if named else ""


def _undecided(text: str, keys: Keys) -> list[str]:
    """Notes on what depends on how a script runs: it is read as if each of its lines did."""

    def counts(name: str) -> bool:
        return keys.is_asked(name.replace("_", "-"))

    found = {_spelled(name): one for name, one in places_of(text).items() if counts(name)}
    found |= variables_of(text, counts)
    several = [f"{name} {one}" for name, one in found.items() if len(one.lines) > 1]
    single = [
        f"{name} {one}" for name, one in found.items() if len(one.lines) == 1 and one.only_in_branch
    ]
    notes = []
    if several:
        notes.append(f"of several values in the script the last one counts: {_listed(several)}")
    if single:
        notes.append(f"only in branches of the script, which all count: {_listed(single)}")
    return notes


def _listed(texts: list[str]) -> str:
    return "; ".join(texts[:UNDECIDED_MAX]) + "; ..." * (len(texts) > UNDECIDED_MAX)


def _option(name: str) -> str:
    """An option and the value that it has if nobody gives it."""
    usual = {"batch": "a microbatch for each stage of each replica", "expert_tensor": "tensor"}
    default = usual.get(name, "1")
    return f"{name.replace('_', '-')} (default: {default})"


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    return {ON: True, OFF: False, "none": None, "null": None}.get(text.lower(), text)


def _model(args: _Arguments, sizes: Sizes, notes: list[str]) -> Model:
    spelled = {name: tuple(key.replace("_", "-") for key in keys) for name, keys in NAMES.items()}
    found = args.keys.sizes(spelled, sizes, "a model of Megatron-LM")
    hidden = found["hidden"]
    gated = args.flag("swiglu", "gated MLP")
    tied = not args.flag("untie_embeddings_and_output_weights", "untied embeddings")
    usual = hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden
    groups = args.number("num_query_groups", "kv_heads") or 1
    grouped = args.flag("group_query_attention", "grouped queries")
    longest = args.number("max_position_embeddings", "longest sequence") or 0
    is_learned = args.text("position_embedding_type") in ("", "learned_absolute")
    is_learned = is_learned and not args.flag("use_rotary_position_embeddings")
    model = Model(
        name="megatron",
        **found,
        ffn=sizes.get("ffn") or args.number("ffn_hidden_size", "ffn") or usual,
        kv_heads=sizes.get("kv_heads") or (groups if grouped else 0),
        gated=gated,
        tied=tied,
        more=longest * hidden if is_learned else 0,
    )
    if args.flag("multi_latent_attention", "latent attention"):
        model = _latent(model, args)
    else:
        model = with_head_size(model, args.number("kv_channels", "head size"))
    return _with_experts(model, args, sizes, notes)


def _latent(model: Model, args: _Arguments) -> Model:
    """Sizes of the parts have defaults, those of Megatron's MLATransformerConfig."""
    latent = Latent(
        args.number("q_lora_rank", "attention", least=0) or 0,
        args.number("kv_lora_rank", "attention") or 512,
        args.number("qk_head_dim", "attention") or 128,
        args.number("qk_pos_emb_head_dim", "attention") or 64,
        args.number("v_head_dim", "attention") or 128,
    )
    attention = latent.parameters(model.hidden, model.heads)
    return replace(model, attention=attention, width=latent.width(model.heads))


def _with_experts(model: Model, args: _Arguments, sizes: Sizes, notes: list[str]) -> Model:
    count = sizes.get("experts") or args.number("num_experts", "experts", least=0)
    if not count or count == 1:
        return model
    active = sizes.get("active") or args.number("moe_router_topk", "active") or 2
    each = args.number("moe_ffn_hidden_size", "ffn of an expert") or model.ffn
    shared = args.number("moe_shared_expert_intermediate_size", "shared ffn", least=0) or 0
    pattern = args.text("moe_layer_freq").replace(" ", "").strip("'\"")
    runs = _RUN.findall(pattern)
    if pattern and not runs and not pattern.isdecimal():
        notes.append(f"--moe-layer-freq {shown(pattern)} is estimated as experts in all layers")
    every = int(pattern) if pattern.isdecimal() and 0 < len(pattern) < 5 else 1
    dense = dense_layers(model.layers, every=every or 1)
    if runs:
        dense = sum(kinds.count("0") * int(times or 1) for kinds, times in runs)
        dense = min(dense, model.layers)
        args.keys.take("moe-layer-freq", "layers without experts", dense)
    return with_experts(model, Experts(count, active, each, shared, dense, model.ffn), notes)


def _plan(args: _Arguments, options: dict[str, Any], layers: int, notes: list[str]) -> int | None:
    """Takes all options of a plan; returns the number of GPUs."""
    for option, name in DEGREES.items():
        if (found := args.number(name, option)) is not None:
            options[option] = found
    if args.flag("sequence_parallel", "sequence-parallel"):
        options["split_sequence"] = True
    if args.flag("tp_comm_overlap", "overlap-tensor"):
        options["overlap"] = True
    options["zero"] = 1 if args.flag("use_distributed_optimizer", "zero 1:") else 0
    if options["zero"] and args.flag("overlap_param_gather", "overlap-gather"):
        options["overlap_gather"] = True
    if any(args.flag(f"use_{name}", "zero 3:") for name in ("torch_fsdp2", "megatron_fsdp")):
        options["zero"] = 3
    _dispatcher(args, options, notes)
    gpus = _data(args, options, notes)
    _interleave(args, options, layers)
    _again(args, options, notes)
    # Gradients in bf16 are summed in fp32 (arguments.py); those in fp16 only with the option.
    is_half = args.flag("bf16", "value_bytes 2:"), args.flag("fp16", "value_bytes 2:")
    options["value_bytes"] = 2 if any(is_half) else 4
    wide = args.flag("accumulate_allreduce_grads_in_fp32", "gradient_bytes 4:")
    options["gradient_bytes"] = 4 if wide or not is_half[1] else 2
    _eight_bits(args, options, notes)
    return gpus


def _dispatcher(args: _Arguments, options: dict[str, Any], notes: list[str]) -> None:
    """Notes that the dispatcher of tokens is not the one that is estimated."""
    name = "moe_token_dispatcher_type"
    kind = args.text(name) or "allgather"  # the default of arguments.py
    if options.get("expert", 1) == 1:
        return
    if kind == "allgather":
        notes.append(
            "experts are estimated with AllToAlls: --moe-token-dispatcher-type allgather, "
            "Megatron-LM's default, gathers the tokens of all GPUs and takes longer"
        )
    else:
        args.keys.take(name.replace("_", "-"), "AllToAlls of experts", kind)


def _eight_bits(args: _Arguments, options: dict[str, Any], notes: list[str]) -> None:
    """Whether products are in FP8. --fp8-hybrid, --fp8-e4m3: flags of older versions."""
    for name in ("fp8_format", "fp8", "fp8_hybrid", "fp8_e4m3", "fp4_format", "fp4"):
        if args.text(name) not in ("", str(False)):
            options["dtype"] = "fp8"
            args.keys.take(name.replace("_", "-"), "dtype", "fp8")
            if "fp4" in name:
                notes.append("FP4 has no estimate: it is taken as FP8")


def _data(args: _Arguments, options: dict[str, Any], notes: list[str]) -> int | None:
    """Data parallel ranks are what the launcher's processes leave, the number of which returns."""
    nodes, each = _nodes(args, notes), _each_node(args, notes)
    world = args.number("world_size", "GPUs") or (each * (nodes or 1) if each else None)
    if each:
        options["gpus_per_node"] = each
    if world is None:
        notes.append("the number of GPUs is not in the file: --data")
        return None
    others = math.prod(options.get(name, 1) for name in ("tensor", "pipeline", "context"))
    if world % others == 0:
        options["data"] = world // others
    return world


def _nodes(args: _Arguments, notes: list[str]) -> int | None:
    """Nodes of torchrun (pytorch.org/docs/stable/elastic/run.html); of a range, the most."""
    text = args.text("nnodes")
    span = _SPAN.fullmatch(text)
    if span is None:
        return args.number("nnodes", "nodes")
    least, most = int(span[1]), int(span[2])
    if not 1 <= least <= most:
        raise ConfigError(f"--nnodes: {text}: must be as 1:4, the fewest and the most nodes")
    args.keys.take("nnodes", "nodes", most)
    notes.append(f"--nnodes {text}: {most} nodes, the most, count: --data says otherwise")
    return most


def _each_node(args: _Arguments, notes: list[str]) -> int | None:
    """Processes of a node, one for each GPU; torchrun also takes words that count devices."""
    name = "nproc_per_node"
    if (text := args.text(name)) not in ("gpu", "auto", "cpu", "xpu"):
        return args.number(name, "GPUs a node")
    notes.append(f"--nproc-per-node {text}: how many a node has is not in the file")
    return None


def _interleave(args: _Arguments, options: dict[str, Any], layers: int) -> None:
    stages = options.get("pipeline", 1)
    chunks = args.number("num_virtual_stages_per_pipeline_rank", "interleave")
    each = args.number("num_layers_per_virtual_pipeline_stage", "layers of a chunk")
    if each and layers and stages > 1:
        if layers % (stages * each):
            raise ConfigError(
                f"--num-layers-per-virtual-pipeline-stage: {each}: {layers} layers of {stages} "
                "stages cannot be split so"
            )
        chunks = layers // stages // each
    if chunks and stages > 1:
        options["interleave"] = chunks


def _again(args: _Arguments, options: dict[str, Any], notes: list[str]) -> None:
    kind = args.text("recompute_granularity")
    if args.flag("recompute_activations", "recompute selective:"):
        options["recompute"] = "selective"
    if kind in ("selective", "full"):
        options["recompute"] = kind
        args.keys.take("recompute-granularity", "recompute", kind)
    if kind == "full" and args.text("recompute_method") == "block":
        notes.append("--recompute-method block is estimated as the recomputation of all layers")
