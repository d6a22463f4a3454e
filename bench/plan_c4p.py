"""Repeats the four experiments of C4P in the simulator, with and without a plan of the paths.

The fabric is C4P's: nodes of eight NICs, two bonded ports of 200 Gb/s a NIC, leaves and spines.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from bench.lib.c4p import experiments, run, seeds_of, summed, turns, ways
from bench.lib.c4p_loss import TINY, Times, run_loss
from bench.lib.c4p_plot import draw
from bench.lib.common import Config, document, emit, interruptible, json_option, median

COLUMNS = (
    *("experiment", "way", "seeds", "median", "least", "most", "gain", "c4p_without", "c4p_with"),
    *("c4p_gain", "max_to_mean", "unfinished"),
)
LOSS_COLUMNS = (*("way", "seeds", "before", "least", "until_plan", "after", "back_us", "assign_s"),)
NOTE = (
    "busbw of an AllReduce in Gb/s per NIC, which is nccl-tests' GB/s with eight NICs a node; of "
    "all jobs and seeds; gain: over ECMP with single paths"
)
LOSS_NOTE = (
    "Gb/s per NIC as the slowest connection of a job allows, mean of the jobs; back_us: from the "
    "loss until this rate stays above 0.9 of its final value; a new plan takes effect after "
    "{:g} us"
)


@click.command("plan_c4p")
@click.option(
    "--hosts",
    type=click.Choice(["128", "1024"]),
    default="128",
    show_default=True,
    help="NICs of the fabric.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Seeds of the hashes; planned runs take a quarter of them.",
)
@click.option(
    "--queue-pairs",
    type=click.IntRange(1, 64),
    default=16,
    show_default=True,
    help="Connections of one path between two NICs.",
)
@click.option("--only", default="", help="Experiments and ways whose name contains this text.")
@click.option("--loss", "losses", is_flag=True, help="Instead, lose a link during each run.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Instead, draw the loads of the links with the eight jobs.",
)
@click.option("--tiny", is_flag=True, help="A small fabric: only shows that it works.")
@json_option
def command(
    hosts: str,
    seeds: int,
    queue_pairs: int,
    only: str,
    losses: bool,
    plot: Path | None,
    tiny: bool,
    json_path: str | None,
) -> None:
    """C4P's experiments in the simulator: ECMP, planned paths, several paths, and both."""
    compared = ways(queue_pairs)
    chosen = experiments(int(hosts), tiny)
    if plot is not None:
        draw(chosen[1], (compared[0], compared[1]), plot)
        return
    times = TINY if tiny else Times()
    runs: list[Config] = []
    with tempfile.TemporaryDirectory() as folder, interruptible() as cut:
        if losses:
            for way in compared:
                some = range(1, seeds_of(way, seeds) + 1)
                runs += [run_loss(chosen[1], way, times, one, Path(folder)) for one in some]
        else:
            for experiment, way, seed in turns(chosen, compared, seeds):
                if only in f"{experiment.name}, {way.name}":
                    runs.append(run(experiment, way, seed, Path(folder)))
    config = {"hosts": int(hosts), "queue_pairs": queue_pairs, "tiny": tiny, "loss": losses}
    delay_us = (times.planned_ns - times.lost_ns) / 1e3
    note = LOSS_NOTE.format(delay_us) if losses else NOTE
    rows = of_losses(runs) if losses else summed(chosen, compared, runs)
    columns = LOSS_COLUMNS if losses else COLUMNS
    emit(document("plan_c4p", rows, config=config, runs=runs), json_path, columns, [note], cut)


def of_losses(runs: list[Config]) -> list[Config]:
    """A row for each way: medians over the seeds; back_us: None if a run never recovered."""
    rows = []
    for name in dict.fromkeys(one["way"] for one in runs):
        mine = [one for one in runs if one["way"] == name]
        row: Config = {"way": name, "seeds": len(mine)}
        row |= {key: median(mine, key) for key in LOSS_COLUMNS[2:] if key != "back_us"}
        back = [one["back_us"] for one in mine]
        row["back_us"] = None if None in back else median(mine, "back_us")
        rows.append(row)
    return rows


if __name__ == "__main__":
    command()
