"""Reads published training runs: one set to fit the estimator to, and one that stays held out.

A row of reference/training_fit.csv or training_held_out.csv is a run as its source tells it; the
column `assumed` names what the source leaves open, and what no column can say. A table of a source
is in one set only, and no configuration is in both. Sources were assigned before any error had been
looked at, so that each set has tensor and pipeline parallelism, FSDP, FP8, Hopper, Blackwell, TPUs:

* fit: the runs of bench estimate_published (Megatron-LM on A100, MT-NLG, Llama 3, MegaScale,
  DeepSeek-V3; vTrain's are in vtrain_iterations.csv), Megatron-LM on H100, torchtitan, fms-fsdp,
  Megatron Bridge, NeMo AutoModel, MaxText on v4 and v5p;
* held out: NVIDIA's DGX Cloud recipes, NeMo 24.07, llm-foundry, BLOOM, TinyLlama, FlashAttention,
  FlagPerf, OneFlow, MaxText on v5e, TPU recipes (v6e, Ironwood).

Of large tables only some rows are taken, chosen by number of GPUs and length of sequences: those of
llm-foundry with 2,048 tokens (on 40 GB from 64 GPUs on) or of its 7B model, and of weak scaling a
small and the largest number of GPUs. Hence compare sources as well as generations of GPUs.
`weft estimate` must not be tuned to the held-out set, nor to single rows of it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from transport.estimate.models import PRESETS, Model

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
SETS = {
    "fit": REFERENCE / "training_fit.csv",
    "held out": REFERENCE / "training_held_out.csv",
}
SIZE_MAX = 1 << 20  # bytes of a file that is read
NUMBER_MAX = 10**7
# Units of `value`. tflops: operations a second and GPU, without those of recomputation, attention
# counted without its mask; causal_tflops: with it, which halves attention's; hardware_tflops: with
# those of recomputation; tokens_per_s: a GPU's.
UNITS = ("tflops", "causal_tflops", "hardware_tflops", "tokens_per_s", "step_s", "mfu")
# zero: hybrid: ZeRO 3 inside of groups, DDP between them. recompute: attention: only its matrix
# (Korthikanti et al. 2022), which FlashAttention never keeps; selective: some layers or operations.
CHOICES = {
    "gated": ("", "no", "yes"),
    "tied": ("", "no", "yes"),
    "zero": ("0", "1", "2", "3", "hybrid"),
    "dtype": ("bf16", "fp16", "fp8", "fp4"),
    "recompute": ("none", "attention", "selective", "full"),
    "attention": ("flash", "matrix"),
    "sequence_parallel": ("no", "yes"),
    "unit": UNITS,
}
SIZES = ("layers", "hidden", "heads", "ffn", "vocabulary")
MORE_OF_MODEL = ("kv_heads", "gated", "tied", "experts", "active")
# Numbers that may be left out, with what that means.
OPTIONAL = {"kv_heads": 0, "experts": 1, "active": 1, "nics_per_node": 0}
DEGREES = ("data", "tensor", "pipeline", "context")
NUMBERS = (
    *(*DEGREES, "gpus", "gpus_per_node", "expert", "interleave"),
    *("micro_batch", "global_batch", "sequence"),
)
TEXTS = ("run", "source", "model", "gpu", "inside", "between")
COLUMNS = (
    *("run", "source", "model", *SIZES, *MORE_OF_MODEL),
    *("gpu", "gpus", "gpus_per_node", "nics_per_node", *DEGREES, "expert", "zero", "interleave"),
    *("micro_batch", "global_batch", "sequence", "dtype", "recompute", "attention"),
    *("sequence_parallel", "inside", "between", "unit", "value", "assumed"),
)
# Generation of each accelerator that a row may name.
GENERATIONS = {
    "V100": ("v100-16",),
    "A100": ("a100-40", "a100-80"),
    "Hopper": ("h100", "h100-96", "h800", "h200"),
    "Blackwell": ("b200", "gb200", "b300", "gb300"),
    "TPU": ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x"),
}
GPUS = {gpu: generation for generation, gpus in GENERATIONS.items() for gpu in gpus}


class PublishedError(ValueError):
    """A file of published runs that is not valid; names file, line and column."""


@dataclass(frozen=True)
class PublishedRun:
    """A published run. data: replicas, gpus / (tensor * pipeline * context).

    zero: 0 to 3, or None for hybrid sharding. nics_per_node: 0: one for each GPU. value: in `unit`,
    of UNITS.
    """

    run: str
    source: str
    model: Model
    gpu: str
    gpus: int
    gpus_per_node: int
    nics_per_node: int
    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    zero: int | None
    interleave: int
    micro_batch: int
    global_batch: int
    dtype: str
    recompute: str
    flash: bool
    sequence_parallel: bool
    inside: str
    between: str
    unit: str
    value: float
    assumed: str

    @property
    def generation(self) -> str:
        return GPUS[self.gpu]

    @property
    def publisher(self) -> str:
        """The part of `source` before its first comma: publishers have several tables."""
        return self.source.partition(",")[0]

    @property
    def configuration(self) -> tuple[object, ...]:
        """What decides the time of a step: equal for two runs of the same work."""
        sizes = self.model
        return (
            *(sizes.layers, sizes.hidden, sizes.ffn, sizes.experts, sizes.sequence),
            *(self.gpu, self.gpus, self.data, self.tensor, self.pipeline, self.context),
            *(self.expert, self.zero, self.interleave, self.micro_batch, self.global_batch),
            *(self.dtype, self.recompute),
        )

    def step_s(self, flops: float) -> float:
        """The published time of a step in s. flops: operations a second of one GPU at its peak."""
        tokens = self.global_batch * self.model.sequence
        if self.unit == "step_s":
            return self.value
        if self.unit == "tokens_per_s":
            return tokens / (self.value * self.gpus)
        speed = self.value * (flops if self.unit == "mfu" else 1e12)
        again = self.unit == "hardware_tflops" and self.recompute == "full"
        flops = self.model.step_flops(tokens, again)
        if self.unit == "causal_tflops":
            model = self.model
            flops -= 6.0 * tokens * model.sequence * model.hidden * model.layers
        return flops / (speed * self.gpus)


def read(file: Path) -> list[PublishedRun]:
    """The runs of a file. PublishedError: it is not valid."""
    try:
        if file.stat().st_size > SIZE_MAX:
            raise PublishedError(f"{file}: more than {SIZE_MAX} bytes")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PublishedError(f"cannot read {file}: {error}") from None
    return list(_runs(file, lines))


def _runs(file: Path, lines: list[str]) -> Iterator[PublishedRun]:
    kept = [(at, line) for at, line in enumerate(lines, 1) if line and line[0] != "#"]
    if not kept or kept[0][1] != ",".join(COLUMNS):
        raise PublishedError(f"{file}: the columns must be {','.join(COLUMNS)}")
    seen: set[str] = set()
    for at, line in kept[1:]:
        try:
            found = _run(line)
            if found.run in seen:
                raise PublishedError(f"run: {found.run}: there are two of this name")
        except (PublishedError, csv.Error) as error:
            raise PublishedError(f"{file}, line {at}: {error}") from None
        seen.add(found.run)
        yield found


def _run(line: str) -> PublishedRun:
    (parts,) = csv.reader([line], strict=True)
    if len(parts) != len(COLUMNS):
        raise PublishedError(f"it has {len(parts)} columns: give {len(COLUMNS)}")
    cells = dict(zip(COLUMNS, parts, strict=True))
    texts = {name: _text(cells, name) for name in TEXTS}
    chosen = {name: _choice(cells, name) for name in CHOICES}
    numbers = {name: _number(cells, name) for name in NUMBERS}
    optional = {
        name: _number(cells, name) if cells[name] else default for name, default in OPTIONAL.items()
    }
    if texts["gpu"] not in GPUS:
        raise PublishedError(f"gpu: {texts['gpu']}: must be one of {', '.join(GPUS)}")
    _check(numbers)
    nics = optional.pop("nics_per_node")
    return PublishedRun(
        texts["run"],
        texts["source"],
        _model(cells, chosen, optional, numbers["sequence"]),
        texts["gpu"],
        nics_per_node=nics,
        zero=None if chosen["zero"] == "hybrid" else int(chosen["zero"]),
        dtype=chosen["dtype"],
        recompute=chosen["recompute"],
        flash=chosen["attention"] == "flash",
        sequence_parallel=chosen["sequence_parallel"] == "yes",
        inside=texts["inside"],
        between=texts["between"],
        unit=chosen["unit"],
        value=_value(cells["value"], chosen["unit"]),
        assumed=cells["assumed"],
        **{name: number for name, number in numbers.items() if name != "sequence"},
    )


def _check(numbers: Mapping[str, int]) -> None:
    """Raises PublishedError if the numbers of a row do not fit each other."""
    product = 1
    for name in DEGREES:
        product *= numbers[name]
    if product != numbers["gpus"]:
        raise PublishedError(
            f"gpus: {numbers['gpus']}: {' x '.join(DEGREES)} are {product}: make them equal"
        )
    if numbers["global_batch"] % (numbers["data"] * numbers["micro_batch"]):
        raise PublishedError("global_batch: must be a multiple of data x micro_batch")
    if numbers["interleave"] > 1 and numbers["pipeline"] == 1:
        raise PublishedError("interleave: must be 1 without pipeline stages")


def _model(
    cells: Mapping[str, str], chosen: Mapping[str, str], optional: Mapping[str, int], sequence: int
) -> Model:
    name = cells["model"]
    given = [size for size in (*SIZES, *MORE_OF_MODEL) if cells[size]]
    if not given:  # a preset has all of them
        if name not in PRESETS:
            raise PublishedError(f"model: {name}: is no preset: give {', '.join(SIZES)}")
        return replace(PRESETS[name], sequence=sequence)
    sizes = {size: _number(cells, size) for size in SIZES}
    gated, tied = (chosen[key] == "yes" for key in ("gated", "tied"))
    return Model(name=name, sequence=sequence, gated=gated, tied=tied, **sizes, **optional)


def _text(cells: Mapping[str, str], name: str) -> str:
    if not cells[name] or cells[name] != cells[name].strip():
        raise PublishedError(f"{name}: {cells[name]!r}: must be a text without spaces around it")
    return cells[name]


def _choice(cells: Mapping[str, str], name: str) -> str:
    if cells[name] not in CHOICES[name]:
        raise PublishedError(f"{name}: {cells[name]!r}: must be {' or '.join(CHOICES[name])}")
    return cells[name]


def _number(cells: Mapping[str, str], name: str) -> int:
    text = cells[name]
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise PublishedError(f"{name}: {text!r}: must be a whole number")
    if not 1 <= int(text) <= NUMBER_MAX:
        raise PublishedError(f"{name}: {text}: must be 1 to {NUMBER_MAX}")
    return int(text)


def _value(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise PublishedError(f"value: {text!r}: must be a number") from None
    most = 1.0 if unit == "mfu" else 1e6
    if not 0 < value <= most:
        raise PublishedError(f"value: {text}: must be above 0 and at most {most:g} ({unit})")
    return value
