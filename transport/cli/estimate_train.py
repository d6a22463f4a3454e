"""`weft estimate train`: a training step's time, exposed communication, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_configs import config_option, configured
from transport.cli.estimate_memory import MEMORY_OPTIONS, offload_option, set_framework
from transport.cli.estimate_options import (
    gpu_of,
    gpu_options,
    network_of,
    network_options,
    refusing,
    torus_of,
    torus_options,
    usage_errors,
)
from transport.cli.estimate_report import Report, compared_table, report
from transport.cli.estimate_run import Spent, add_run, run_of, run_options
from transport.cli.estimate_sites import SiteOptions, sites_options
from transport.cli.options import HTML, InputFile, output_file
from transport.cli.output import json_option, write_json
from transport.cli.packages import PAGES, PLOTS, need_packages
from transport.cli.plots import prepared, save
from transport.estimate.names import matched, size_of
from transport.estimate.plan import DTYPES, RANKS_MAX, RECOMPUTES, REMATS, SCHEDULES

if TYPE_CHECKING:
    from transport.estimate.computation import Computation
    from transport.estimate.curves import Curve
    from transport.estimate.gpus import Gpu
    from transport.estimate.models import Model
    from transport.estimate.plan import Plan
    from transport.estimate.ranges import Range
    from transport.estimate.training import Training

# Options of parallelism -> help.
DEGREES = {
    "data": "Data parallel replicas.",
    "tensor": "GPUs that share each layer.",
    "pipeline": "Pipeline stages.",
    "interleave": "Model chunks of a pipeline stage (virtual stages).",
    "expert": "GPUs that share the experts of a layer.",
    "context": "GPUs that share each sequence.",
}
SIZES = {
    "layers": "layers",
    "hidden": "hidden size",
    "heads": "heads of attention",
    "kv_heads": "heads of keys and values",
    "ffn": "hidden size of the MLP, or of an expert",
    "vocabulary": "vocabulary",
    "sequence": "tokens of a sequence",
    "experts": "experts of a layer",
    "active": "experts that a token uses",
}
LAYERS_MAX, SIZE_MAX = 4_096, 1 << 31
# Sizes that a custom model must give.
NEEDED = {"layers", "hidden", "heads", "ffn", "vocabulary", "sequence"}


def _integer(option: str, default: int, least: int, most: int | None, text: str) -> Any:
    """An option whose value is an integer from `least` to `most`."""
    kind = click.IntRange(least, most)
    return click.option(option, default=default, show_default=True, type=kind, help=text)


def size_options(command: Any) -> Any:
    """Adds the options that change the model's sizes."""
    for name, text in reversed(SIZES.items()):
        option = f"--{name.replace('_', '-')}"
        help_text = f"{text[0].upper()}{text[1:]}. Default: what MODEL has."
        kind = click.IntRange(1, LAYERS_MAX if name == "layers" else SIZE_MAX)
        command = click.option(option, name, type=kind, help=help_text)(command)
    return command


def number_options(command: Any, without: str = "") -> Any:
    """Adds the model's sizes and the degrees of parallelism. without: one to leave out."""
    command = size_options(command)
    degrees = {name: text for name, text in DEGREES.items() if name != without}
    for name, text in reversed(degrees.items()):
        command = _integer(f"--{name}", 1, 1, RANKS_MAX, text)(command)
    return command


GPU_OPTIONS = (
    gpu_options,
    click.option(
        "--computation",
        metavar="FILE",
        type=InputFile(),
        help="Take the computation that `python -m bench step` (in the repository, "
        "not in the wheel) measured on one GPU.",
    ),
)
# Options of a plan that `estimate plan` has, too.
COMMON_OPTIONS = (
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default=DTYPES[0],
        show_default=True,
        help="Type of the matrix products of a layer's linear parts; fp8: as in Transformer "
        "Engine, with attention and logits in bf16. The GPU's profile must have its rate.",
    ),
    *MEMORY_OPTIONS,
    click.option(
        "--flash/--no-flash",
        default=True,
        show_default=True,
        help="FlashAttention: the attention matrix stays out of memory.",
    ),
    click.option(
        "--overlap-tensor/--no-overlap-tensor",
        "overlap",
        default=False,
        help="Operations of tensor parallelism run in parts beside the products they depend on.",
    ),
    click.option(
        "--overlap-context/--no-overlap-context",
        default=False,
        help="Keys and values go around the context parallel ranks beside attention (Megatron's "
        "p2p); else attention waits for them.",
    ),
    click.option(
        "--expert-tensor",
        default=0,
        show_default=True,
        type=click.IntRange(0, RANKS_MAX),
        help="GPUs that share each expert (Megatron's --expert-tensor-parallel-size). 0: as many "
        "as share the other layers.",
    ),
    _integer("--value-bytes", 2, 1, 8, "Bytes of a parameter and of an activation."),
    _integer("--gradient-bytes", 2, 1, 8, "Bytes of a gradient as it is sent."),
)
PLAN_OPTIONS = (
    click.option(
        "--batch",
        type=click.IntRange(1),
        help="Sequences of a step, of all GPUs. Default: a microbatch for each stage of a replica.",
    ),
    _integer("--micro-batch", 1, 1, None, "Sequences of a microbatch."),
    _integer(
        "--zero", 0, 0, 3, "ZeRO: 0: DDP, 1 and 2: optimizer and gradients are split, 3: FSDP."
    ),
    click.option(
        "--shard",
        default=0,
        show_default=True,
        type=click.IntRange(0, RANKS_MAX),
        help="Ranks that ZeRO splits among, such as those of a node; the others are replicas of "
        "them (HSDP). 0: all.",
    ),
    click.option(
        "--sum-replicas-once",
        "sum_once",
        is_flag=True,
        help="HSDP: replicas sum gradients after the last microbatch only (PyTorch: "
        "set_requires_all_reduce).",
    ),
    click.option(
        "--bucket",
        default="25 MiB",
        show_default=True,
        metavar="SIZE",
        help="Size of the gradients that an operation sends; a number without a unit is of MiB, "
        "as bucket_cap_mb.",
    ),
    click.option(
        "--recompute",
        type=click.Choice([*RECOMPUTES, *REMATS]),
        is_flag=False,
        flag_value="full",
        metavar="KIND",
        default="none",
        show_default=True,
        help="What backward computes again. none; selective: attention's matrix (Megatron); "
        "selective-op: every other product (torchtitan); full, or no value: each layer; "
        f"{', '.join(REMATS)}: all that MaxText's remat_policy of this name does not keep.",
    ),
    offload_option,
    click.option(
        "--sequence-parallel/--no-sequence-parallel",
        "split_sequence",
        default=False,
        help="Split activations between tensor parallel parts, too.",
    ),
    click.option(
        "--overlap-gather/--no-overlap-gather",
        default=False,
        help="ZeRO 1 and 2 gather parameters beside the next forward pass, not after the step.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(SCHEDULES),
        default=SCHEDULES[0],
        show_default=True,
        help="Schedule of the pipeline. 1f1b: one forward, one backward; zero-bubble: ZB-H1; "
        "dualpipe: that of DeepSeek-V3.",
    ),
    *COMMON_OPTIONS,
)


def step_options(command: Any) -> Any:
    """Adds the model, the GPU, the plan and the network: all that decides a step."""
    model = click.argument("model")
    options = (model, config_option, *GPU_OPTIONS, *PLAN_OPTIONS, number_options, network_options)
    for option in reversed(options):
        command = option(command)
    return command


@click.command("train", short_help="Estimate a training step.")
@step_options
@torus_options
@sites_options
@run_options
@refusing(
    "--gpus",
    "a step has --data x --tensor x --pipeline x --context GPUs: give --data, or let `weft "
    "estimate plan` search them",
)
@click.option(
    "--compare",
    "others",
    metavar="LINK",
    multiple=True,
    help="Also estimate the step with this link between nodes; may be repeated.",
)
@click.option(
    "--gantt",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw when each stream of each stage is busy, as .png or .svg.",
)
@click.option(
    "--curves",
    "curves_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Plot the time of a step over GPUs, bandwidth and latency.",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    type=output_file(*HTML),
    help="Write one page with all tables and pictures.",
)
@json_option
def command(model: str, others: tuple[str, ...], json_path: str | None, **given: Any) -> None:
    """Estimate a training step of MODEL: a preset, a configuration file, or `custom` with sizes.

    A file is config.json of Hugging Face, Megatron-LM's arguments or torchtitan's TOML. What files
    say about parallelism and batch are defaults of the options. --data x --tensor x --pipeline x
    --context GPUs, by default one, are nodes of their own unless --inside links GPUs of a node.

    \b
    Examples:
      weft estimate train llama3-8b --data 64 --zero 3 --inside nvlink4 --between ethernet-400
      weft estimate train gpt3-175b --data 16 --tensor 8 --pipeline 8 --batch 1536 --recompute \\
          --gpu a100-80 --inside nvlink3 --between infiniband-200
      weft estimate train llama2-70b --gpu tpu-v4 --torus 4x4x8 --data 32 --tensor 4 --zero 3
      weft estimate train config.json --config deepspeed.json --inside nvlink4
      weft estimate train pretrain.sh --data 64 --inside nvlink4
    """
    from transport.estimate.training import as_json, train

    files = Files(*(given.pop(name) for name in ("gantt", "curves_file", "page"))).prepared()
    torus, slices, between = given.pop("torus"), given.pop("slices"), given["between"]
    _check_together(torus, slices, others, files, given)
    files_read, sites = configured(model, given, SIZES), SiteOptions.taken(given)
    links = {link: network_of(given | {"between": link}) for link in others}
    network = network_of(given) if torus is None else None
    with usage_errors():
        shape = model_of(files_read.model, given)
        computing = Computing.taken(given)
        one = network or torus_of(str(torus), given, computing.gpu, slices)
        run = run_of(given, computing.gpu, _gpus_of(given), one.gpus_per_node)
        plan = plan_of(given)
        network = sites.join(one, plan)
        computation = computing.of(shape, plan)
        found = train(shape, plan, computing.gpu, network, computation)
        compared = {between: found} | {
            link: train(shape, plan, computing.gpu, sites.join(one, plan), computation)
            for link, one in links.items()
        }
        expected = computing.range_of(found, shape, plan)
        said = report(found, plan, network, computing, expected)
        spent = Spent.of(run, found.step_ns, plan, shape, computing.gpu)
        add_run(said, run, spent, expected, [*files_read.lines, *sites.lines()])
        said.tables.extend([compared_table(compared)] if others else [])
        draw(files, said, found, lambda: curves_of(shape, plan, computation, network))
    if json_path is None:
        said.show()
        return
    inputs = _inputs_json(shape, plan, computing, computation) | spent.as_json()
    inputs |= {"network": network.name, "sites": sites.count, "range": vars(expected)}
    more = {"compared": {link: as_json(one) for link, one in compared.items()}} if others else {}
    write_json(inputs | as_json(found) | more | files_read.document, json_path)


def _gpus_of(given: dict[str, Any]) -> int:
    """The GPUs of the degrees that options give."""
    return math.prod(given[name] for name in ("data", "tensor", "pipeline", "context"))


def _check_together(
    torus: str | None, slices: int, others: tuple[str, ...], files: Files, given: dict[str, Any]
) -> None:
    """Raises a usage error for options that exclude each other."""
    if others and given["network_file"] is not None:
        raise click.UsageError("--compare: give links with --between, not --network")
    if torus is not None and (others or files.curves or files.page):
        raise click.UsageError("--torus: leave out --compare, --curves and --html")
    if given["sites"] > 1 and (files.curves or files.page):
        raise click.UsageError("--sites: leave out --curves and --html, which have one site")
    if torus is None and slices > 1:
        raise click.UsageError("--slices: give the shape of one, --torus, such as 4x4x4")


def _inputs_json(
    model: Model, plan: Plan, computing: Computing, computation: Computation
) -> dict[str, Any]:
    return {
        "model": vars(model),
        "plan": vars(plan),
        "gpu": computing.gpu.name,
        "efficiency": computing.gpu.efficiency,
        "computation": vars(computation),
    }


@dataclass(frozen=True)
class Files:
    """The pictures and the page to write; None: not asked for."""

    gantt: Path | None
    curves: Path | None
    page: Path | None

    def prepared(self) -> Files:
        """Fails before the work if a picture cannot be drawn."""
        if self.page is not None:
            need_packages("--html", PAGES, PLOTS)
        for option, file in (("--gantt", self.gantt), ("--curves", self.curves)):
            if file is not None:
                prepared(file, option)
        if self.page is not None:
            prepared(Path("page.svg"), "--html")
        return self


@dataclass(frozen=True)
class Computing:
    """How the computation time of a step is found.

    file: measured times; None: computed from the GPU's rates.
    """

    gpu: Gpu
    file: Path | None

    @classmethod
    def taken(cls, given: dict[str, Any]) -> Computing:
        """Reads the options, and removes them from `given`."""
        efficiency, file = given["efficiency"], given.pop("computation")
        if file is not None and efficiency is not None:
            raise click.UsageError(
                "--efficiency does not apply to a measured --computation: leave it out"
            )
        gpu = gpu_of(given)
        set_framework(given, gpu)
        return cls(gpu, file)

    def of(self, model: Model, plan: Plan) -> Computation:
        from transport.estimate.computation import measured, of_gpu

        if self.file is None:
            return of_gpu(model, plan, self.gpu)
        return measured(self.file, model, plan)

    def range_of(self, found: Training, model: Model, plan: Plan) -> Range:
        from transport.estimate.ranges import queued_ns, range_of

        measured, queued = self.file is not None, queued_ns(found.rows, plan)
        return range_of(found.step_ns, model, plan, self.gpu, measured, queued)


def curves_of(*inputs: Any) -> list[Curve]:
    from transport.estimate.curves import curves

    return curves(*inputs)


def draw(files: Files, said: Report, found: Training, computed: Callable[[], list[Curve]]) -> None:
    """Writes the files that were asked for."""
    from transport.cli import estimate_page as pages

    title = f"A step of {found.model}"
    if files.gantt is not None:
        save(pages.gantt(found), title, files.gantt)
    if files.curves is None and files.page is None:
        return
    made = computed()
    if files.curves is not None:
        save(pages.curves_figure(made), title, files.curves)
    if files.page is not None:
        pages.write_page(files.page, title, said, found, made)


def model_of(name: str | Model, given: dict[str, Any]) -> Model:
    """The preset with the sizes that were given; takes them out of `given`.

    A model of a file has these sizes already.
    """
    from transport.estimate.models import ALIASES, PRESETS, Model, resized

    sizes = {key: given.pop(key) for key in SIZES}
    if not isinstance(name, str):
        return name
    sizes = {key: value for key, value in sizes.items() if value is not None}
    name = matched(name, (*PRESETS, *ALIASES, "custom"))
    name = ALIASES.get(name, name)
    if name in PRESETS:
        return resized(PRESETS[name], sizes)
    if name != "custom":
        raise click.UsageError(f"no model {name}: known are {', '.join(PRESETS)} and custom")
    if missing := sorted(NEEDED - set(sizes)):
        raise click.UsageError(f"the model custom needs --{' --'.join(missing)}")
    return Model(name="custom", **sizes)


def plan_of(given: dict[str, Any]) -> Plan:
    from transport.estimate.plan import Plan

    try:
        bucket_bytes = size_of(given.pop("bucket"), bare="M")
    except ValueError as error:
        raise click.UsageError(f"--bucket: {error}") from None
    batch = given.pop("batch") or given["data"] * given["micro_batch"] * given["pipeline"]
    split, name = given.pop("split_sequence"), given.pop("recompute")
    again = {"kept": REMATS[name]} if name in REMATS else RECOMPUTES[name]
    return Plan(**given, **again, global_batch=batch, bucket_bytes=bucket_bytes, sequence=split)
