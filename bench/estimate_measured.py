"""Compares estimates of operations with measurements: those of the fit, and others.

Each network is fitted to one result of `python -m bench nccl` and compared with another one. The
results are those in bench/results, or given.
"""

from __future__ import annotations

from pathlib import Path

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from transport.estimate.calibrate import fit
from transport.estimate.check import Compared, compared, summary_of
from transport.estimate.samples import SamplesError, of_bench
from transport.ground.units import binary_text

RESULTS = Path(__file__).parent / "results"
NAME = "2026-11-26-nccl-times-{}.json"
# Result that a network is fitted to, result to compare with, contender whose times are used.
PAIRS = (
    ("nvlink-2xH100", "nvlink-2xH100", "NVLink"),
    ("nvlink-4xH100", "nvlink-4xH100", "NVLink"),
    ("nvlink-2xH100", "nvlink-4xH100", "NVLink"),
    ("lo-2xH100", "lo-2xH100", "weft"),
    ("lo-4xH100", "lo-4xH100", "weft"),
    ("lo-2xH100", "lo-4xH100", "weft"),
    ("lab-2xH100", "lab-2xH100", "weft"),
)
LARGE_BYTES = 16 << 20
COLUMNS = ("fitted", "compared", "sizes", "rows", "median", "p95", "within_5", "within_15")


def row_of(fitted: str, other: str, sizes: str, rows: list[Compared]) -> Config:
    held = {} if fitted != other else {"in_sample": True}
    summary = vars(summary_of(rows))
    return {"fitted": fitted, "compared": other, "sizes": sizes, "rows": len(rows)} | summary | held


def compare(fitted: Path, other: Path, contender: str) -> list[Config]:
    network = fit(of_bench(fitted, contender), fitted.stem, fitted.name).network
    rows = compared(network, of_bench(other, contender))
    large = [row for row in rows if row.sample.size_bytes >= LARGE_BYTES]
    names = fitted.stem, other.stem
    return [row_of(*names, "all", rows), row_of(*names, f">= {binary_text(LARGE_BYTES)}", large)]


@click.command("estimate_measured")
@click.option(
    "--fitted",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A result of bench nccl to fit to; else those in bench/results.",
)
@click.option(
    "--other",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A result to compare with; the same if not given.",
)
@click.option(
    "--contender", default="weft", show_default=True, help="Contender whose times are used."
)
@json_option
def command(fitted: Path | None, other: Path | None, contender: str, json_path: str | None) -> None:
    """Compares estimates of operations with measurements of NCCL."""
    pairs = [
        (RESULTS / NAME.format(one), RESULTS / NAME.format(two), name) for one, two, name in PAIRS
    ]
    if fitted is not None:
        pairs = [(fitted, other or fitted, contender)]
    with interruptible() as cut:
        try:
            rows = [row for pair in pairs for row in compare(*pair)]
        except SamplesError as error:
            raise click.UsageError(str(error)) from None
    notes = [
        "median, p95: errors without their sign",
        "within_5, within_15: share of rows with an error of at most 5 % or 15 %, or at most the "
        "spread of repeats if that is larger",
    ]
    emit(document("estimate_measured", rows), json_path, COLUMNS, notes, cut)
