"""Models and plans of configuration files, for `weft estimate`: MODEL as a path, and --config."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from transport.cli.estimate_options import chosen_gpu, linked, usage_errors
from transport.estimate.names import size_of
from transport.ground.text import printable

if TYPE_CHECKING:
    from transport.estimate.configs import Given
    from transport.estimate.models import Model

UNUSED_MAX = 24  # keys without effect that are printed
FILES_MAX = 8
# Parameter -> its option, if their names differ.
OPTIONS = {"split_sequence": "sequence-parallel", "overlap": "overlap-tensor"}

config_option = click.option(
    "--config",
    "configs",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Take parallelism, batch and precision of a file of Megatron-LM, torchtitan or DeepSpeed "
    "as defaults of the options; may be repeated.",
)


@dataclass
class Configured:
    """The model that counts, a name or that of a file; and what was said about files."""

    model: str | Model
    lines: list[str] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        """What --json has of the files."""
        return {"files": self.files} if self.files else {}


def configured(
    model: str, given: dict[str, Any], names: Collection[str], only: Collection[str] | None = None
) -> Configured:
    """Reads files that the command line names, and changes defaults in `given` to what they say.

    names: the model's sizes in `given`. only: parameters that a file may set; None: all. Takes
    `configs` out of `given`. Usage errors: a file is wrong, or none has a model.
    """
    from transport.estimate.configs import ConfigError, is_file, read

    sizes = {name: given[name] for name in names if given[name] is not None}
    files = [(file, True) for file in given.pop("configs")]
    if is_file(model):
        if not Path(model).exists():
            raise click.UsageError(f"no file {printable(model)}")
        files.insert(0, (Path(model), False))
    if len(files) > FILES_MAX:
        raise click.UsageError(f"more than {FILES_MAX} files: give fewer")
    found = Configured(model)
    try:
        read_files = [(file, read(file, sizes, has_model)) for file, has_model in files]
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    for file, one in read_files:
        _apply(file, one, given, only, found)
    _narrow(read_files, given, found)
    _replicate(read_files, given, found)
    _accumulate([one for _, one in read_files], given, found)
    _link_inside(read_files, given, found)
    if is_file(model):
        first, shape = read_files[0]
        if shape.model is None:
            raise click.UsageError(
                f"{printable(first.name)} ({shape.form}) has no model: give MODEL and --config "
                f"{printable(first.name)}"
            )
        found.model = shape.model
        found.lines.insert(1, f"model: {shape.model.parameters / 1e9:,.3f} billion parameters")
    return found


def _apply(
    file: Path, one: Given, given: dict[str, Any], only: Collection[str] | None, found: Configured
) -> None:
    """Changes the defaults of options to a file's values, and says so."""
    name = printable(file.name)
    apart: list[str] = []
    ignored: list[str] = []
    for key, value in one.options.items():
        if key not in given or (only is not None and key not in only):
            ignored.append(_text(key, value))
        elif _is_said(key):
            if not _is_same(key, given[key], value):
                apart.append(f"{_text(key, given[key])} (the file has {value})")
        else:
            given[key] = value
    taken = [f"{what} ({printable(key)})" for key, what in one.taken.items()]
    found.lines.append(f"{name} ({one.form}): {', '.join(taken) or 'nothing that counts'}")
    if apart:
        found.lines.append(f"options count instead: {', '.join(apart)}")
    if ignored:
        found.lines.append(f"{name}: not what this command takes: {', '.join(ignored)}")
    if one.unused:
        more = ", ..." * (len(one.unused) > UNUSED_MAX)
        keys = ", ".join(map(printable, one.unused[:UNUSED_MAX]))
        found.lines.append(f"{name}: without effect: {keys}{more}")
    found.lines += [f"note: {name}: {printable(note)}" for note in one.notes]
    found.files.append(
        {
            "file": str(file),
            "form": one.form,
            "taken": one.taken,
            "options": one.options,
            "gpus": one.gpus,
            "unused": list(one.unused),
            "notes": list(one.notes),
        }
    )


def _text(key: str, value: Any) -> str:
    return f"--{OPTIONS.get(key, key).replace('_', '-')} {value}"


def _is_same(key: str, said: Any, value: Any) -> bool:
    """Whether an option and a file say the same; sizes of buckets may have other units."""
    if key == "bucket":
        with suppress(ValueError):
            return size_of(said, bare="M") == size_of(value, bare="M")
    return bool(said == value)


def _is_said(name: str) -> bool:
    """Whether the command line has the option."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def _narrow(files: Sequence[tuple[Path, Given]], given: dict[str, Any], found: Configured) -> None:
    """Changes FP8 that only a file asks for to 16 bits if the GPU has no rate in FP8."""
    if given.get("dtype") != "fp8" or _is_said("dtype"):
        return
    with usage_errors():
        chosen = chosen_gpu()
    if not chosen.fp8_flops:
        given["dtype"] = "bf16"
        (*_, file) = (file for file, one in files if "dtype" in one.options)
        found.lines.append(
            f"note: {printable(file.name)}: FP8 is estimated as 16 bits: the profile of "
            f"{chosen.name} has no rate in FP8, which is dense.fp8 there"
        )


def _link_inside(
    files: Sequence[tuple[Path, Given]], given: dict[str, Any], found: Configured
) -> None:
    """Links the GPUs of a node as their profile says, if only a file says that nodes have some."""
    sized = [file for file, one in files if one.options.get("gpus_per_node", 1) > 1]
    if "inside" not in given or "gpus" in given or not sized:  # `plan` always links them
        return
    if given["inside"] or given["network_file"] or given.get("torus") or _is_said("gpus_per_node"):
        return
    with usage_errors():
        notes = linked(given, chosen_gpu())
    found.lines += [f"note: {printable(sized[-1].name)}: {one}" for one in notes]


def _replicate(
    files: Sequence[tuple[Path, Given]], given: dict[str, Any], found: Configured
) -> None:
    """Sets data parallel replicas: what other degrees leave of the GPUs that a file has."""
    counted = [
        (file, one.gpus) for file, one in files if one.gpus is not None or "data" in one.options
    ]
    if not counted or "data" not in given or _is_said("data"):
        return
    file, gpus = counted[-1]
    if gpus is None:
        return
    degrees = {name: given[name] for name in ("tensor", "pipeline", "context")}
    others = math.prod(degrees.values())
    shown = " x ".join(f"{name} {value}" for name, value in degrees.items())
    if gpus % others:
        raise click.UsageError(
            f"{printable(str(file))}: {gpus} GPUs are no multiple of {shown}, {others}: give "
            "--data, or other degrees"
        )
    given["data"] = gpus // others
    found.lines.append(f"data {given['data']}: {gpus} GPUs of {printable(file.name)} / ({shown})")


def _accumulate(files: list[Given], given: dict[str, Any], found: Configured) -> None:
    """Sets the batch or the micro-batch, whichever is not given, from microbatches of a replica."""
    counted = [one for one in files if one.accumulation is not None]
    if not counted or "data" not in given:
        return
    steps, replicas = counted[-1].accumulation or 1, given["data"]
    if given.get("batch") is None:
        given["batch"] = replicas * given["micro_batch"] * steps
    elif "batch" in counted[-1].options:
        if _is_said("micro_batch") or any("micro_batch" in one.options for one in files):
            found.lines.append(
                f"note: batch / (data x micro-batch) counts, not the file's {steps} microbatches"
            )
            return
        if given["batch"] % (replicas * steps):
            raise click.UsageError(
                f"--batch: {given['batch']}: must be a multiple of data x microbatches of a step, "
                f"{replicas} x {steps}: give --data, --batch or --micro-batch"
            )
        given["micro_batch"] = given["batch"] // replicas // steps
        found.lines.append(
            f"micro-batch {given['micro_batch']}: batch {given['batch']} / (data {replicas} x "
            f"{steps} microbatches of a step)"
        )
