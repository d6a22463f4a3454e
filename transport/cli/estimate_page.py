"""Draws an estimated step: a Gantt chart, curves, and one HTML page with both and all tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport import pages
from transport.cli.output import write_file
from transport.ground.units import rate_text, time_text

if TYPE_CHECKING:
    from transport.cli.estimate_report import Report
    from transport.estimate.curves import Curve
    from transport.estimate.training import Training


def gantt(found: Training) -> Any:
    """A Gantt chart of a step, with a row for each stream of each pipeline stage."""
    from matplotlib.figure import Figure

    streams = list(dict.fromkeys((task.stage, task.stream) for task in found.tasks))
    colors = {
        kind: f"C{at}" for at, kind in enumerate(dict.fromkeys(task.kind for task in found.tasks))
    }
    figure = Figure(figsize=(10.0, 1.5 + 0.3 * len(streams)))
    axes = figure.subplots()
    times = list(zip(found.tasks, found.timed.begins_ns, found.timed.ends_ns, strict=True))
    for kind, color in colors.items():
        for row, stream in enumerate(streams):
            bars = [
                (begin / 1e6, (end - begin) / 1e6)
                for task, begin, end in times
                if task.kind == kind and (task.stage, task.stream) == stream and end > begin
            ]
            axes.broken_barh(bars, (row - 0.4, 0.8), color=color)
        axes.plot([], [], color=color, linewidth=6, label=kind)
    axes.set_yticks(range(len(streams)), [f"stage {stage}: {name}" for stage, name in streams])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncol=len(colors), frameon=False)
    return figure


def curves_figure(found: Sequence[Curve]) -> Any:
    """Plots the time of a step and its exposed communication, with a panel for each curve."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(4.0 * len(found), 3.2))
    for axes, one in zip(panels, found, strict=True):
        draw_curve(axes, one)
    panels[0].legend(fontsize=8)
    return figure


def curve_panels(found: Sequence[Curve]) -> list[Any]:
    """The same plots, each in a figure of its own."""
    from matplotlib.figure import Figure

    made = []
    for one in found:
        figure = Figure(figsize=(5.5, 3.4))
        axes = figure.subplots()
        draw_curve(axes, one)
        axes.legend(fontsize=8)
        made.append(figure)
    return made


def draw_curve(axes: Any, one: Curve) -> None:
    """Plots one curve; a grey line marks the value that was given."""
    xs = [point.x for point in one.points]
    axes.plot(xs, [point.step_ns / 1e6 for point in one.points], "o-", label="step")
    exposed_ms = [point.exposed_ns / 1e6 for point in one.points]
    axes.plot(xs, exposed_ms, "s--", label="exposed communication")
    axes.axvline(one.given, color="0.7", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [_x_text(one, x) for x in xs], rotation=45, fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(one.name)
    axes.set_ylabel("ms")


def _x_text(one: Curve, x: float) -> str:
    return rate_text(x) if one.unit == "B/s" else f"{x:g}"


def write_page(
    out: Path, title: str, said: Report, found: Training, curves: Sequence[Curve]
) -> None:
    """Writes the estimate as one self-contained HTML page, with charts."""
    rows = [
        [one.name, _x_text(one, point.x), time_text(point.step_ns), time_text(point.exposed_ns)]
        for one in curves
        for point in one.points
    ]
    page = pages.rendered(
        "estimate.html",
        title=title,
        command=shlex.join(["weft", *sys.argv[1:]]),
        tables=said.tables,
        lines=said.lines,
        step=pages.plot(gantt(found)),
        curves=[pages.plot(one) for one in curve_panels(curves)],
        points=(["against", "", "step", "exposed communication"], rows),
    )
    write_file(out, page)
    click.echo(f"wrote {out}", err=True)
