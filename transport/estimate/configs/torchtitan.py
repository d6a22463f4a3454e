"""Reads what torchtitan's TOML says about a model and a plan.

Keys are those of github.com/pytorch/torchtitan (torchtitan/config/job_config.py), with the older
names of batch and degrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transport.estimate.configs.given import ConfigError, Given, Keys, Sizes, shown
from transport.estimate.models import PRESETS, Model, resized

FLAVORS = {
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3-405b",
    ("llama2", "7B"): "llama2-7b",
    ("llama2", "70B"): "llama2-70b",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
SECTIONS = ("model", "training", "parallelism", "experimental", "activation_checkpoint")
# Schedules of torch.distributed.pipelining -> that of the estimate, and its chunks of a stage.
SCHEDULES = {
    "1f1b": ("1f1b", 1),
    "interleaved1f1b": ("1f1b", 2),
    "zbvzerobubble": ("zero-bubble", 1),
    "interleavedzerobubble": ("zero-bubble", 1),
}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def is_torchtitan(values: Mapping[str, Any]) -> bool:
    return any(isinstance(values.get(section), dict) for section in SECTIONS)


def of_torchtitan(values: Mapping[str, Any], sizes: Sizes, has_model: bool) -> Given:
    """The plan of torchtitan's TOML, and its model unless another one counts. ConfigError."""
    flat = {
        f"{section}.{key}": value
        for section, each in values.items()
        if isinstance(each, dict)
        for key, value in each.items()
    }
    keys = Keys(flat)
    notes: list[str] = []
    options: dict[str, Any] = {}
    model = None if has_model else _model(keys, sizes)
    length = keys.number("training.seq_len", name="sequence")
    if length is not None and model is not None and "sequence" not in sizes:
        model = replace(model, sequence=length)
    _degrees(keys, options, notes)
    _pipeline(keys, options, sizes.get("layers") or (model.layers if model else None), notes)
    accumulation = _batches(keys, options)
    _again(keys, options, notes)
    if keys.flag("compile.enable") or keys.flag("training.compile"):
        options["framework"] = "compiled"
        keys.take("compile.enable", "framework", "compiled")
    _eight_bits(keys, options, notes)
    for key, name in (("param", "value_bytes"), ("reduce", "gradient_bytes")):
        kind = keys.text(f"training.mixed_precision_{key}")
        if kind in BYTES:
            options[name] = BYTES[kind]
            keys.take(f"training.mixed_precision_{key}", name, BYTES[kind])
    return Given("torchtitan", model, options, accumulation, keys.taken, keys.unused, tuple(notes))


def _model(keys: Keys, sizes: Sizes) -> Model:
    name, flavor = keys.text("model.name"), keys.text("model.flavor")
    known = FLAVORS.get((name.lower().replace("llama3.1", "llama3"), flavor))
    if known is None:
        every = ", ".join(f"{one} {size}" for one, size in FLAVORS)
        raise ConfigError(
            f"model.name {shown(name)} with model.flavor {shown(flavor)} is not known: known are "
            f"{every}; for others give the model, and this file with --config"
        )
    keys.take("model.name", "model", known)
    keys.take("model.flavor", "model", known)
    return resized(PRESETS[known], sizes)


def _degree(keys: Keys, name: str, becomes: str, least: int = 1) -> int | None:
    """A degree of parallelism, in the section parallelism or where older versions have it."""
    places = [f"{section}.{name}_degree" for section in ("parallelism", "training", "experimental")]
    return keys.number(*places, name=becomes, least=least)


def _degrees(keys: Keys, options: dict[str, Any], notes: list[str]) -> None:
    for name, option in (
        ("tensor_parallel", "tensor"),
        ("pipeline_parallel", "pipeline"),
        ("context_parallel", "context"),
        ("expert_parallel", "expert"),
    ):
        if (found := _degree(keys, name, option)) is not None:
            options[option] = found
    if options.get("tensor", 1) > 1:
        options["split_sequence"] = True  # torchtitan's tensor parallelism always does
    if options.get("expert", 1) > 1:  # experts are whole unless the file says otherwise
        parts = _degree(keys, "expert_tensor_parallel", "expert-tensor")
        options["expert_tensor"] = parts or 1
    for section in ("parallelism", "experimental"):
        if keys.flag(f"{section}.enable_async_tensor_parallel"):
            options["overlap"] = True
            keys.take(f"{section}.enable_async_tensor_parallel", "overlap-tensor", "true")
    copies = _degree(keys, "data_parallel_replicate", "replicas") or 1
    shard = _degree(keys, "data_parallel_shard", "ranks of a shard", least=-1)
    shard = -1 if shard is None else shard
    options["zero"] = 0 if shard == 1 and copies > 1 else 3
    if shard > 0:
        options["data"] = copies * shard
    else:
        notes.append("data_parallel_shard_degree -1 takes all other GPUs: --data says how many")
    if copies > 1 and shard > 1:
        options["shard"] = shard * options.get("context", 1)
    if copies > 1 and shard == -1:
        notes.append(f"replicas {copies}: --shard is --data divided by {copies}, times context")


def _pipeline(keys: Keys, options: dict[str, Any], layers: int | None, notes: list[str]) -> None:
    """The schedule and its chunks of a stage. layers: of the model; None: not known."""
    name = "parallelism.pipeline_parallel_schedule"
    kind = keys.text(name)
    if options.get("pipeline", 1) == 1:
        return
    known = SCHEDULES.get(kind.lower())
    if known is None:
        if kind:
            notes.append(f"{name} {shown(kind)} is estimated as 1f1b")
        known = SCHEDULES["1f1b"]
    else:
        options["schedule"] = known[0]
        keys.take(name, "schedule", known[0])
    is_interleaved = known[1] > 1
    chunks = _chunks(keys, options["pipeline"], layers, is_interleaved, notes)
    if is_interleaved and chunks is not None:
        options["interleave"] = chunks
    elif is_interleaved:
        options["interleave"] = known[1]
        notes.append(f"{kind}: {known[1]} chunks of a stage, as is torchtitan's default")


def _chunks(
    keys: Keys, stages: int, layers: int | None, is_interleaved: bool, notes: list[str]
) -> int | None:
    """Model chunks of a stage by the layers of each (torchtitan/distributed/pipeline_parallel.py).

    The ends of the model count as layers, one each by default. None: not in the file, or not used.
    """
    name = "parallelism.pipeline_parallel_layers_per_stage"
    each = keys.number(name)
    if each is None:
        return None
    if layers is None or not is_interleaved:
        why = "the layers of the model are not in it" if is_interleaved else "stages have one chunk"
        notes.append(f"{name} {each} is not used, as {why}: --interleave")
        return None
    ends = [
        keys.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0)
        for end in ("first", "last")
    ]
    chunks = -(-(layers + sum(1 if one is None else one for one in ends)) // each)
    if chunks % stages:
        raise ConfigError(
            f"{name}: {each}: {chunks} chunks cannot be split among {stages} stages: change it, "
            "or give the model, and this file with --config"
        )
    keys.take(name, "interleave", chunks // stages)
    return chunks // stages


def _batches(keys: Keys, options: dict[str, Any]) -> int | None:
    """Takes the batch sizes; returns the microbatches of a step in each replica."""
    local = keys.number("training.local_batch_size", "training.batch_size", name="local batch")
    whole = keys.number("training.global_batch_size", name="batch", least=-1)
    if whole is not None and whole > 0:
        options["batch"] = whole
    if options.get("pipeline", 1) > 1:
        micro = keys.number("parallelism.pipeline_parallel_microbatch_size", name="micro_batch")
        micro = micro or 1
    else:
        micro = local or 1
    options["micro_batch"] = micro
    if local is None or "batch" in options:
        return None
    if local % micro:
        raise ConfigError(
            f"training.local_batch_size: {local}: must be a multiple of "
            f"parallelism.pipeline_parallel_microbatch_size, {micro}"
        )
    return local // micro


def _again(keys: Keys, options: dict[str, Any], notes: list[str]) -> None:
    """What is recomputed."""
    mode = keys.text("activation_checkpoint.mode")
    option = str(keys.value("activation_checkpoint.selective_ac_option") or "op")
    if not mode:
        return
    found = {"none": "none", "full": "full", "selective": "selective-op"}.get(mode)
    if found is None:
        notes.append(f"activation_checkpoint.mode {shown(mode)} is estimated as none")
        found = "none"
    elif mode == "selective" and option != "op":
        notes.append(f"recomputing layers 1 of {option} is estimated as --recompute selective-op")
    options["recompute"] = found
    keys.take("activation_checkpoint.mode", "recompute", found)


def _eight_bits(keys: Keys, options: dict[str, Any], notes: list[str]) -> None:
    """Whether converters compute products in FP8, or in MX, FP8 with a scale of 32 values."""
    converters = keys.value("model.converters")
    names = [str(one) for one in converters] if isinstance(converters, list) else []
    found = [one for one in names if "float8" in one or one.split(".")[-1] == "mx"]
    if found:
        keys.take("model.converters", "dtype", "fp8")
    elif keys.flag("float8.enable_float8_linear"):  # of older versions
        keys.take("float8.enable_float8_linear", "dtype", "fp8")
    else:
        return
    options["dtype"] = "fp8"
    if found and all("grouped_mm" in one for one in found):
        notes.append(f"{shown(found[0])} is estimated as FP8 in all linear parts of a layer")
