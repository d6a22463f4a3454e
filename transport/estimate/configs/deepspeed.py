"""Reads what a DeepSpeed configuration says about a plan (deepspeed.ai/docs/config-json)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transport.estimate.configs.given import ConfigError, Given, Keys, shown

AUTO = "auto"  # Hugging Face's Trainer fills it in
KNOWN = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("zero_optimization", "bf16", "fp16"),
)
OFFLOADS = ("offload_optimizer", "offload_param")
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "bfp16": 2}


def is_deepspeed(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in KNOWN)


def of_deepspeed(values: Mapping[str, Any]) -> Given:
    """The plan of a DeepSpeed configuration, which has no model. ConfigError: offloading."""
    flat = dict(_flat(values))
    left = [key for key, value in flat.items() if value == AUTO]
    keys = Keys({key: value for key, value in flat.items() if value != AUTO})
    options: dict[str, Any] = {}
    notes = [f"auto is not in the file: {', '.join(left)}"] if left else []
    _refuse_offload(values)
    stage = keys.number("zero_optimization.stage", name="zero", least=0)
    if stage is not None:
        if stage > 3:
            raise ConfigError(f"zero_optimization.stage: {stage}: must be 0 to 3")
        options["zero"] = stage
    shard = keys.number("zero_optimization.mics_shard_size", name="shard", least=-1)
    if shard is not None and shard > 0:
        options["shard"] = shard
    _bytes(keys, options)
    if keys.flag("msamp.enabled"):  # azure.github.io/MS-AMP, "Usage in DeepSpeed"
        options["dtype"] = "fp8"
        keys.take("msamp.enabled", "dtype", "fp8")
        notes.append("MS-AMP: gradients and optimizer states in 8 bits are not estimated")
    bucket = keys.number("zero_optimization.reduce_bucket_size")
    if bucket is not None:  # of elements
        size = bucket * options.get("gradient_bytes", 2)
        options["bucket"] = f"{size} B"
        keys.take("zero_optimization.reduce_bucket_size", "bucket", f"{size:,} bytes")
    tensor = keys.number("tensor_parallel.autotp_size", name="tensor", least=0)
    if tensor:
        options["tensor"] = tensor
    accumulation = _batches(keys, options, notes)
    if "data" not in options:
        notes.append("the number of GPUs is not in the file: --data")
    return Given("DeepSpeed", None, options, accumulation, keys.taken, keys.unused, tuple(notes))


def _batches(keys: Keys, options: dict[str, Any], notes: list[str]) -> int | None:
    """Takes the three batch sizes, of which two give data parallel ranks; returns accumulation."""
    micro = keys.number("train_micro_batch_size_per_gpu", name="micro_batch")
    steps = keys.number("gradient_accumulation_steps", name="microbatches of a step")
    batch = keys.number("train_batch_size", name="batch")
    if micro is not None:
        options["micro_batch"] = micro
    if batch is None:
        return steps or 1
    options["batch"] = batch
    if micro is None:
        return steps
    each = micro * (steps or 1)
    if batch % each:
        raise ConfigError(
            f"train_batch_size: {batch}: must be a multiple of train_micro_batch_size_per_gpu x "
            f"gradient_accumulation_steps, {each}"
        )
    if steps is not None:
        options["data"] = batch // each
        notes.append(
            f"{batch // each} data parallel replicas: train_batch_size / "
            "(train_micro_batch_size_per_gpu x gradient_accumulation_steps)"
        )
    return None


def _bytes(keys: Keys, options: dict[str, Any]) -> None:
    """Takes the types of values and of gradients as they are sent."""
    halves = [name for name in ("bf16", "fp16") if keys.flag(f"{name}.enabled")]
    if halves:
        options["value_bytes"] = 2
        keys.take(f"{halves[0]}.enabled", "value_bytes", 2)
    elif any(f"{name}.enabled" in keys for name in ("bf16", "fp16")):
        options["value_bytes"] = options["gradient_bytes"] = 4
        keys.take("bf16.enabled", "value_bytes", 4)
    kind = keys.value("communication_data_type")
    if kind is None:
        return
    if kind not in BYTES:
        raise ConfigError(
            f"communication_data_type: {shown(kind)} is not known: {', '.join(BYTES)}"
        )
    options["gradient_bytes"] = BYTES[kind]
    keys.take("communication_data_type", "gradient_bytes", BYTES[kind])


def _refuse_offload(values: Mapping[str, Any]) -> None:
    zero = values.get("zero_optimization")
    if not isinstance(zero, dict):
        return
    for name in OFFLOADS:
        one = zero.get(name)
        device = one.get("device", "cpu") if isinstance(one, dict) else None
        if device not in (None, "none"):
            raise ConfigError(
                f"zero_optimization.{name} to {shown(device)} is not estimated: remove it to "
                "estimate the step without offloading"
            )


def _flat(values: Mapping[str, Any], before: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """Keys of inner objects as outer.inner."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and depth < 8:
            found += _flat(value, f"{before}{key}.", depth + 1)
        else:
            found.append((before + key, value))
    return found
