"""Estimates training steps before they are measured, and compares the two.

First, with --computation and --network: estimates, from the computation of one GPU and measured
networks. Then, with --predicted and --measured: their errors. Both steps are separate, so that the
estimates can be recorded before the steps are run.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from bench.lib.common import Config, document, emit, json_option
from bench.lib.record import read
from bench.step import SIZES
from transport.estimate.computation import ComputationError, measured
from transport.estimate.gpus import gpu
from transport.estimate.models import PRESETS
from transport.estimate.networks import Network, NetworkError, load
from transport.estimate.plan import Plan
from transport.estimate.training import train
from transport.ground.units import percent

ZERO = {"ddp": 0, "fsdp": 3}
GPU = "h200"  # only its memory counts here: computation is measured
KEY = ("contender", "model", "parallel")
PREDICTED = (*KEY, "step_ms", "alone_ms", "exposed_ms")
COMPARED = (
    *(*KEY, "predicted_ms", "step_ms", "spread", "error"),
    *("predicted_exposed_ms", "exposed_ms", "exposed_error"),
)
MEASURED = (*KEY, *SIZES, "micro_batch", "step_ms", "spread", "alone_ms", "exposed_ms")
PART_OF_STEP = 0.02  # a smaller error of exposed communication, as a part of the step, is tolerated


def networks_of(given: tuple[str, ...]) -> dict[str, Network]:
    """Contender -> the network fitted to its operations, from CONTENDER=FILE."""
    found = {}
    for one in given:
        name, is_given, file = one.partition("=")
        if not is_given:
            raise click.UsageError(f"--network {one}: give CONTENDER=FILE")
        try:
            found[name] = load(Path(file))
        except NetworkError as error:
            raise click.UsageError(str(error)) from None
    return found


def predictions(
    file: Path, networks: dict[str, Network], gpus: int, bucket_mb: int
) -> list[Config]:
    """A row per network, model and kind of parallelism."""
    rows = []
    for one in of_bench(file, "step")["rows"]:
        if "forward_ns" not in one or one.get("parallel", "alone") != "alone":
            continue
        model, micro = PRESETS[one["model"]], one["micro_batch"]
        single = Plan(micro_batch=micro, global_batch=micro)
        for contender, network in networks.items():
            alone_ns = train(
                model, single, gpu(GPU), network, measured(file, model, single)
            ).step_ns
            for parallel, zero in ZERO.items():
                plan = replace(
                    single,
                    data=gpus,
                    zero=zero,
                    global_batch=micro * gpus,
                    bucket_bytes=bucket_mb << 20,
                )
                found = train(model, plan, gpu(GPU), network, measured(file, model, plan))
                rows.append(
                    dict(zip(KEY, (contender, model.name, parallel), strict=True))
                    | {"micro_batch": micro, "gpus": gpus, "step_ms": found.step_ns / 1e6}
                    | {"alone_ms": alone_ns / 1e6, "exposed_ms": (found.step_ns - alone_ns) / 1e6}
                    | {"operations": [vars(row) for row in found.rows]}
                )
    return rows


def of_bench(file: Path, bench: str) -> Config:
    """A recorded result of one bench; UsageError if it is of another."""
    found = read(file)
    if found["bench"] != bench:
        raise click.UsageError(f"{file} is a result of bench {found['bench']}, not of {bench}")
    return found


def comparison(predicted: Path, measured_file: Path) -> tuple[list[Config], Config]:
    """Errors relative to measured times; that of exposed communication, relative to the step."""
    before, after = of_bench(predicted, "estimate_steps"), of_bench(measured_file, "step")
    for key, usual in (("gpus", None), ("bucket_mb", 25)):
        one, other = before.get(key, usual), after.get(key, usual)
        if one != other:
            raise click.UsageError(
                f"{key}: the estimates are for {one}, the measured steps for {other}"
            )
    guesses = {tuple(row[key] for key in KEY): row for row in before["rows"]}
    rows = []
    for one in after["rows"]:
        if one.get("parallel") not in ZERO:
            continue
        guess = guesses.get(tuple(one[key] for key in KEY))
        if guess is None or guess["micro_batch"] != one["micro_batch"]:
            raise click.UsageError(f"{predicted} has no estimate of {[one[key] for key in KEY]}")
        missed_ms = guess["exposed_ms"] - one["exposed_ms"]
        allowed_ms = max(0.1 * one["exposed_ms"], PART_OF_STEP * one["step_ms"], 0.0)
        rows.append(
            {key: one[key] for key in MEASURED}
            | {"predicted_ms": guess["step_ms"], "predicted_exposed_ms": guess["exposed_ms"]}
            | {"error": guess["step_ms"] / one["step_ms"] - 1}
            | {"alone_error": guess["alone_ms"] / one["alone_ms"] - 1}
            | {"exposed_error": missed_ms / one["step_ms"], "within": abs(missed_ms) <= allowed_ms}
        )
    if not rows:
        raise click.UsageError(f"{measured_file} has no steps of ddp or fsdp")
    return rows, {"gpus": after.get("gpus"), "bucket_mb": after.get("bucket_mb", 25)}


def notes_of(rows: list[Config]) -> list[str]:
    errors = [abs(row["error"]) for row in rows]
    return [
        f"step: error {percent(statistics.median(errors))} in the median, "
        f"{percent(max(errors))} at most; {sum(error <= 0.05 for error in errors)} of "
        f"{len(rows)} within 5 %",
        f"exposed communication: {sum(row['within'] for row in rows)} of {len(rows)} within the "
        "larger of 10 % of it and 2 % of the step (exposed_error: part of the step)",
    ]


@click.command("estimate_steps")
@click.option(
    "--computation",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Result of bench step on one GPU: estimates steps from it.",
)
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="CONTENDER=FILE",
    help="A network that `weft estimate calibrate` fitted.",
)
@click.option("--gpus", default=2, show_default=True, type=click.IntRange(2))
@click.option("--bucket-mb", default=25, show_default=True, type=click.IntRange(1))
@click.option(
    "--predicted",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Recorded estimates: compares them with --measured.",
)
@click.option(
    "--measured",
    "measured_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Steps as bench step --gpus measured them.",
)
@json_option
def command(
    computation: Path | None,
    networks: tuple[str, ...],
    gpus: int,
    bucket_mb: int,
    predicted: Path | None,
    measured_file: Path | None,
    json_path: str | None,
) -> None:
    """Estimates training steps, or compares recorded estimates with measured steps."""
    if computation is not None and networks and predicted is None and measured_file is None:
        try:
            rows = predictions(computation, networks_of(networks), gpus, bucket_mb)
        except ComputationError as error:
            raise click.UsageError(str(error)) from None
        if not rows:
            raise click.UsageError(f"{computation} has no row with the computation of one GPU")
        shape = {"gpus": gpus, "bucket_mb": bucket_mb}
        emit(document("estimate_steps", rows, **shape), json_path, PREDICTED, [])
        return
    if computation is None and predicted is not None and measured_file is not None:
        given = click.get_current_context().get_parameter_source
        if any(given(name) is ParameterSource.COMMANDLINE for name in ("gpus", "bucket_mb")):
            raise click.UsageError(
                "--gpus and --bucket-mb cannot be given with --predicted: its file has them"
            )
        rows, shape = comparison(predicted, measured_file)
        emit(document("estimate_steps", rows, **shape), json_path, COMPARED, notes_of(rows))
        return
    raise click.UsageError("give --computation and --network, or --predicted and --measured")
