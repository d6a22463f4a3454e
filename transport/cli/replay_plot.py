"""Plots what policies decided: windows and rates as steps, paths as choices over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.cli import plots
from transport.cli.options import owner_text
from transport.ground.units import bytes_text, count_text, rate_text, time_text
from transport.policies.replay import Track

Array = NDArray[np.float64]

# Family -> its plotted answers: (index in the answer record, label, unit).
DRAWN = {
    "window": ((0, "window", "bytes"), (1, "pacing rate", "bytes/s")),
    "path": ((0, "path", ""),),
    "loss": ((2, "next check after the event", "ns"),),
    "credit": ((0, "granted", "bytes"),),
}
PACING_RATE = ("window", 1)
TEXT_OF: dict[str, Callable[[float], str]] = {
    "bytes": bytes_text,
    "bytes/s": rate_text,
    "ns": time_text,
}
OWNERS_MAX = 4  # flows or peers with a line of their own
STYLES = ("solid", "dashed", "dotted", "dashdot")
BINS = 600  # more decisions of an owner are drawn as the mean and the range of parts of the time
MARKS_MAX = 300  # marks of losses and timeouts of an owner
MARKS = {"on_loss": "v", "on_timeout": "x"}
PICKS_MAX = 2_000  # more choices of a path are drawn as their number by path and time
LOG_RATIO = 20.0  # values that differ by more have a logarithmic axis


def times_ms(track: Track) -> Array:
    """Times in ms since the first decision."""
    now_ns = np.array(track.now_ns, np.float64)
    return (now_ns - (now_ns[0] if now_ns.size else 0.0)) / 1e6


def values_of(track: Track, index: int) -> Array:
    """One field of the answers; NaN where the answer says nothing."""
    values = track.column(index)
    if track.family == "loss":
        values = np.where(values < 0, np.nan, values - np.array(track.now_ns, np.float64))
    return np.where(np.isfinite(values), values, np.nan)


def series(track: Track, index: int) -> tuple[Array, Array]:
    """Times in ms since the first decision, and the values of one field of the answers."""
    at_ms, values = times_ms(track), track.column(index)
    if track.family == "path":
        chosen = picks_of(track)
        return at_ms[chosen], values[chosen]
    return at_ms, values if track.family != "loss" else values_of(track, index)


def picks_of(track: Track) -> NDArray[np.bool_]:
    """A mask of the decisions that choose a path."""
    return np.array([hook == "pick" for hook in track.hooks], bool)


def draw(pyplot: Any, tracks: Sequence[Track], title: str, out: Path) -> None:
    """Plots the decisions of a recording, and those of other policies on the same events."""
    if tracks[0].family == "path":
        figure = paths_figure(pyplot, tracks)
    else:
        figure = values_figure(pyplot, tracks)
    plots.save(figure, title, out)


def values_figure(pyplot: Any, tracks: Sequence[Track]) -> Any:
    """A panel for each field of the answers, with a line for each policy and flow."""
    panels = DRAWN[tracks[0].family]
    counts = Counter(tracks[0].owners)
    owners = sorted(owner for owner, _ in counts.most_common(OWNERS_MAX))
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 3.4 * len(panels)), sharex=True, squeeze=False
    )
    for axis, (index, what, unit) in zip(axes[:, 0], panels, strict=True):
        for number, track in enumerate(tracks):
            for style, owner in zip(STYLES, owners, strict=False):
                draw_owner(axis, track, owner, index, color=f"C{number}", linestyle=style)
        axis.set_ylabel(what)
        spread(axis, [values_of(track, index) for track in tracks])
        axis.yaxis.set_major_formatter(lambda value, _, text=TEXT_OF[unit]: text(value))
        if axis.get_legend_handles_labels()[1]:
            axis.legend(loc="best", fontsize="x-small")
        else:
            axis.text(
                0.5, 0.5, f"no policy answered a {what}", transform=axis.transAxes, ha="center"
            )
            axis.set_yticks([])
    said = ["ms since the first decision"]
    if tracks[0].family == "window":
        said += ["triangle: a loss", "cross: a timeout"]
    if len(counts) > OWNERS_MAX:
        said += [f"the {OWNERS_MAX} of {len(counts)} flows with most decisions"]
    axes[-1][0].set_xlabel("; ".join(said))
    return figure


def draw_owner(
    axis: Any, track: Track, owner: int, index: int, *, color: str, linestyle: str
) -> None:
    """The values of one flow as steps, with marks where it lost something or timed out.

    Of many decisions the mean of each part of the time is drawn, and their range as a band.
    A pacing rate of 0 means that the flow is not paced, and is left out.
    """
    mine = np.array(track.owners) == owner
    at_ms, values = times_ms(track)[mine], values_of(track, index)[mine]
    if (track.family, index) == PACING_RATE:
        values = np.where(values > 0, values, np.nan)
    if not np.isfinite(values).any():
        return
    label = f"{track.name}, flow {owner_text(owner)}".replace("$", r"\$")
    how = {"color": color, "linestyle": linestyle, "linewidth": 1.0, "label": label}
    if values.size <= BINS:
        axis.plot(at_ms, values, drawstyle="steps-post", marker=".", markersize=3, **how)
    else:
        begins, least, mean, most = binned(at_ms, values)
        axis.fill_between(begins, least, most, step="post", color=color, alpha=0.15, linewidth=0)
        axis.plot(begins, mean, drawstyle="steps-post", **how)
    hooks = np.array(track.hooks)[mine]
    for hook, mark in MARKS.items():
        (at,) = np.nonzero(hooks == hook)
        if 0 < at.size <= MARKS_MAX:
            axis.plot(at_ms[at], values[at], mark, color=color, markersize=5, fillstyle="none")


def binned(at_ms: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Begin of each part of the time with decisions, and their least, mean and largest value.

    They are NaN, a gap in the line, where no value is known.
    """
    span = max(float(at_ms[-1] - at_ms[0]), 1e-9)
    part = np.minimum(((at_ms - at_ms[0]) / span * BINS).astype(int), BINS - 1)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    means = np.divide(sums, counts, out=np.full(counts.size, np.nan), where=counts > 0)
    least, most = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    return at_ms[0] + part[starts] * span / BINS, least, means, most


def spread(axis: Any, values: Sequence[Array]) -> None:
    """Begins the axis at 0, or makes it logarithmic if its values differ by orders."""
    every = np.concatenate(values)
    positive = every[np.isfinite(every) & (every > 0)]
    if positive.size and positive.max() > LOG_RATIO * positive.min():
        axis.set_yscale("log")
        axis.minorticks_off()
    elif positive.size:
        axis.set_ylim(bottom=0)


def whole() -> Any:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True, min_n_ticks=1)


def paths_figure(pyplot: Any, tracks: Sequence[Track]) -> Any:
    """For each policy the paths that it chose over time, and below them each path's share."""
    rows = len(tracks) + 1
    figure, axes = pyplot.subplots(rows, 1, figsize=(9, 2.8 * rows), squeeze=False)
    chosen = [series(track, 0) for track in tracks]
    count = 1 + int(max((values.max(initial=0) for _, values in chosen), default=0))
    last_ms = max((float(at_ms[-1]) for at_ms, _ in chosen if at_ms.size), default=1.0)
    for number, (track, (at_ms, values)) in enumerate(zip(tracks, chosen, strict=True)):
        axis = axes[number][0]
        name = track.name.replace("$", r"\$")
        if values.size <= PICKS_MAX:
            axis.plot(at_ms, values, ".", color=f"C{number}", markersize=4)
        elif values.size:
            edges = (np.linspace(0, max(last_ms, 1e-9), 121), np.arange(-0.5, count))
            *_, image = axis.hist2d(at_ms, values, bins=edges, cmap="viridis", cmin=1)
            figure.colorbar(image, ax=axis, label="choices", format=lambda n, _: count_text(n))
        axis.set_title(f"{name}: {count_text(values.size)} choices", fontsize="medium")
        axis.set_ylabel("path")
        axis.set_ylim(-0.5, count - 0.5)
        axis.set_xlim(0, max(last_ms, 1e-9))
        axis.yaxis.set_major_locator(whole())
        axis.set_xlabel("ms since the first decision")
        shares = np.bincount(np.maximum(values, 0).astype(int), minlength=count)
        percents = 100 * shares / max(values.size, 1)
        width = 0.8 / len(tracks)
        places = np.arange(count) + (number - (len(tracks) - 1) / 2) * width
        axes[-1][0].bar(places, percents, width, color=f"C{number}", label=name)
    axes[-1][0].set_xlabel("path")
    axes[-1][0].set_ylabel("% of the choices")
    axes[-1][0].xaxis.set_major_locator(whole())
    axes[-1][0].legend(fontsize="x-small")
    return figure
