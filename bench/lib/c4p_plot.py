"""Draws the bytes of the links from leaves to spines, with single paths by hash and by plan."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.lib.c4p import Experiment, loads, measured, plan_of, with_plan
from bench.lib.c4p_fabric import Way, scenario


def draw(experiment: Experiment, compared: tuple[Way, Way], file: Path) -> None:
    """Writes a chart: the loads of all links, sorted and divided by the mean load."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for way, colour in zip(compared, ("tab:red", "tab:blue"), strict=True):
        made = scenario(experiment.shape, experiment.work(way), way)
        if way.planned:
            with tempfile.TemporaryDirectory() as folder:
                plan_of(made, Path(folder) / "plan.json")
                made = with_plan(made, (Path(folder) / "plan.json", 0))
                carried = loads(made, measured(experiment, made)[0])
        else:
            carried = loads(made, measured(experiment, made)[0])
        share = np.sort(carried / carried.mean())[::-1]
        axes.step(np.arange(len(share)), share, color=colour, label=way.name, where="post")
    axes.set_xlabel("links from a leaf to a spine, by load")
    axes.set_ylabel("bytes over mean")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
