"""`weft estimate train`: the time of a training step, what of it is exposed, what would help."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.estimate_options import (
    MARK,
    network_of,
    network_options,
    notes_of,
    usage_errors,
)
from transport.cli.output import json_option, print_table, write_json
from transport.cli.plots import prepared, save
from transport.sim.units import bytes_text, time_text

if TYPE_CHECKING:
    from transport.estimate.models import Model
    from transport.estimate.plan import Plan
    from transport.estimate.training import Training

# Options of parallelism -> help.
DEGREES = {
    "data": "Data parallel replicas.",
    "tensor": "GPUs that share each layer.",
    "pipeline": "Pipeline stages.",
    "interleave": "Model chunks of a stage.",
    "expert": "GPUs that share the experts of a layer.",
    "context": "GPUs that share each sequence.",
}
SIZES = {
    "layers": "layers", "hidden": "hidden size", "heads": "heads of attention",
    "kv_heads": "heads of keys and values", "ffn": "hidden size of the MLP, or of an expert",
    "vocabulary": "vocabulary", "sequence": "tokens of a sequence", "experts": "experts of a layer",
    "active": "experts that a token uses",
}  # fmt: skip


def number_options(command: Any) -> Any:
    for name, text in reversed(SIZES.items()):
        option = f"--{name.replace('_', '-')}"
        help_text = f"Instead of the preset's {text}."
        command = click.option(option, name, type=click.IntRange(1), help=help_text)(command)
    for name, text in reversed(DEGREES.items()):
        command = click.option(f"--{name}", default=1, show_default=True, type=click.IntRange(1),
                               help=text)(command)  # fmt: skip
    return command


def step_options(command: Any) -> Any:
    """Adds the model, the GPU, the plan and the network: all that decides a step."""
    for option in reversed((
        click.argument("model"),
        click.option("--gpu", "gpu_name", default="h200", show_default=True, help="GPU."),
        click.option("--efficiency", default=None, type=click.FloatRange(0, 1, min_open=True),
                     help="Part of the GPU's peak that matrix products reach; measure it on one "
                     "GPU. Default: 0.67."),
        click.option("--batch", default=None, type=click.IntRange(1), help="Sequences of a step."),
        click.option("--micro-batch", default=1, show_default=True, type=click.IntRange(1),
                     help="Sequences of a microbatch."),
        click.option("--zero", default=0, show_default=True, type=click.IntRange(0, 3),
                     help="ZeRO: 0: DDP, 1 and 2: optimizer and gradients are split, 3: FSDP."),
        click.option("--bucket", default="25 MiB", show_default=True,
                     help="Gradients of an operation."),
        click.option("--recompute", is_flag=True, help="Backward runs the forward pass again."),
        click.option("--flash/--no-flash", default=True, show_default=True,
                     help="FlashAttention: the attention matrix stays out of memory."),
        click.option("--sequence-parallel", "split_sequence", is_flag=True,
                     help="Split activations between tensor parallel parts, too."),
        click.option("--value-bytes", default=2, show_default=True, type=click.IntRange(1, 8),
                     help="Bytes of a parameter and of an activation."),
        click.option("--gradient-bytes", default=2, show_default=True, type=click.IntRange(1, 8),
                     help="Bytes of a gradient as it is sent."),
        number_options,
        network_options,
    )):  # fmt: skip
        command = option(command)
    return command


@click.command("train")
@step_options
@click.option("--gantt", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Draw when each stream of each stage is busy, as .png or .svg.")  # fmt: skip
@json_option
def command(model: str, gpu_name: str, efficiency: float | None, gantt: Path | None,
            json_path: str | None, **given: Any) -> None:  # fmt: skip
    """Estimate a training step of MODEL: a preset, such as llama3-8b, or `custom` with all sizes.

    \b
    Examples:
      weft estimate train llama3-8b --data 64 --zero 3 --inside nvlink4 --between ethernet-400
      weft estimate train gpt3-175b --data 16 --tensor 8 --pipeline 8 --batch 1536 --recompute \\
          --gpu a100-80 --inside nvlink3 --between infiniband-200
    """
    from transport.estimate.gpus import EFFICIENCY, gpu
    from transport.estimate.training import as_json, train

    pyplot = None if gantt is None else prepared(gantt, "--gantt")
    network = network_of(given)
    with usage_errors():
        shape, plan = model_of(model, given), plan_of(given)
        found = train(shape, plan, gpu(gpu_name, efficiency or EFFICIENCY), network)
    if gantt is not None:
        save(drawn(found, pyplot), f"A step of {shape.name}", gantt)
    if json_path is not None:
        inputs = {"model": vars(shape), "plan": vars(plan), "gpu": gpu_name,
                  "efficiency": efficiency or EFFICIENCY, "network": network.name}  # fmt: skip
        write_json(inputs | as_json(found), json_path)
        return
    show(found, plan)
    if efficiency is None:
        click.echo(
            f"note: matrix products are assumed to reach {EFFICIENCY:.0%} of the GPU's peak: "
            "--efficiency"
        )
    for note in notes_of(network, any(row.extrapolated for row in found.rows)):
        click.echo(f"note: {note}")


def model_of(name: str, given: dict[str, Any]) -> Model:
    """The preset with the sizes that were given; takes them out of `given`."""
    from transport.estimate.models import PRESETS, Model

    sizes = {key: given.pop(key) for key in SIZES}
    sizes = {key: value for key, value in sizes.items() if value is not None}
    if name in PRESETS:
        return Model(**(vars(PRESETS[name]) | sizes))
    if name != "custom":
        raise click.UsageError(f"no model {name}: known are {', '.join(PRESETS)} and custom")
    needed = {one.name for one in fields(Model)} & {"layers", "hidden", "heads", "ffn",
                                                    "vocabulary", "sequence"}  # fmt: skip
    if missing := sorted(needed - set(sizes)):
        raise click.UsageError(f"custom needs --{' --'.join(missing)}")
    return Model(name="custom", **sizes)


def plan_of(given: dict[str, Any]) -> Plan:
    from transport.estimate.plan import Plan
    from transport.sim.units import bytes_of

    try:
        bucket_bytes = bytes_of(given.pop("bucket"))
    except ValueError as error:
        raise click.UsageError(f"--bucket: {error}") from None
    batch = given.pop("batch") or given["data"] * given["micro_batch"] * given["pipeline"]
    split = given.pop("split_sequence")
    return Plan(**given, global_batch=batch, bucket_bytes=bucket_bytes, sequence=split)


def show(found: Training, plan: Plan) -> None:
    parts = [("computation", found.compute_ns), ("waiting for other stages", found.bubble_ns),
             ("exposed communication", found.exposed_ns), ("step", found.step_ns)]  # fmt: skip
    print_table(
        ["part", "time", "share"],
        [[name, time_text(ns), f"{ns / found.step_ns:.1%}"] for name, ns in parts],
    )
    click.echo()
    heads = ["for", "operation", "algorithm", "protocol", "ranks", "nodes", "size", "each",
             "in all", "exposed", "limited by"]  # fmt: skip
    print_table(heads, [
        [row.kind, row.operation, row.algorithm, row.protocol, str(row.ranks), str(row.nodes),
         bytes_text(row.bytes), time_text(row.each_ns) + MARK * row.extrapolated,
         time_text(row.total_ns / plan.pipeline),
         time_text(row.exposed_ns), row.limited_by] for row in found.rows])  # fmt: skip
    click.echo()
    print_table(
        ["change", "step"], [[name, f"{ratio - 1:+.1%}"] for name, ratio in found.gains.items()]
    )
    memory = found.memory
    click.echo(
        f"\n{plan.gpus} GPUs, {found.tokens_per_s:,.0f} tokens/s, "
        f"{found.flops_per_gpu / 1e12:.1f} Tflop/s a GPU\n"
        f"memory of a GPU: {bytes_text(memory.total)} (parameters {bytes_text(memory.parameters)}, "
        f"gradients {bytes_text(memory.gradients)}, optimizer {bytes_text(memory.optimizer)}, "
        f"activations {bytes_text(memory.activations)})"
        f"{'' if found.fits else ': more than it has'}\n"
        f"bottleneck: {found.bottleneck}"
    )
    if found.unchecked:
        click.echo(f"note: not checked against measurements: {', '.join(found.unchecked)}")


def drawn(found: Training, pyplot: Any) -> Any:
    """A Gantt chart of the step: a row for each stream of each stage."""
    streams = list(dict.fromkeys((task.stage, task.stream) for task in found.tasks))
    colors = {kind: f"C{at}" for at, kind in enumerate(dict.fromkeys(
        task.kind for task in found.tasks))}  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(10.0, 1.5 + 0.3 * len(streams)))
    times = list(zip(found.tasks, found.timed.begins_ns, found.timed.ends_ns, strict=True))
    for kind, color in colors.items():
        for row, stream in enumerate(streams):
            bars = [
                (begin / 1e6, (end - begin) / 1e6) for task, begin, end in times
                if task.kind == kind and (task.stage, task.stream) == stream and end > begin
            ]  # fmt: skip
            axes.broken_barh(bars, (row - 0.4, 0.8), color=color)
        axes.plot([], [], color=color, linewidth=6, label=kind)
    axes.set_yticks(range(len(streams)), [f"stage {stage}: {name}" for stage, name in streams])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncol=len(colors), frameon=False)
    return figure
