"""Plots runs or a sweep: FCTs, windows, rates, queues and links."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transport.ground.extras import install
from transport.sim import by_size
from transport.sim.network import Array
from transport.sim.result import Result
from transport.sim.sweep import Case

INSTALL_MATPLOTLIB = install("plots")
PORTS_SHOWN = 512
LABELS_MAX = 10  # maximum number of labels in a legend
STYLES = ("solid", "dashed")  # of the lines of the first run, and of the second one
QUANTILE_STYLES = {"p50": "solid", "p95": "dashed", "p99": "dashdot", "p999": "dotted"}

Results = Mapping[str, Result]  # label -> run; the label of a single run is ""
Draw = Callable[[Any], None]


def figure(results: Results) -> Any:
    """All plots of some runs in one matplotlib Figure."""
    return _in_rows([partial(draw, results=results) for draw in _drawn(results)])


def panels(results: Results) -> list[Any]:
    """All plots of some runs, each in a Figure of its own."""
    return [_alone(partial(draw, results=results)) for draw in _drawn(results)]


def _drawn(results: Results) -> list[Callable[..., None]]:
    """The functions that draw the plots; some need samples."""
    drawn: list[Callable[..., None]] = [fct_cdf, slowdown_cdf, slowdown_by_size, link_use]
    if all(one.samples and len(one.samples["at_ns"]) > 1 for one in results.values()):
        drawn += [queues]
        if all(one.sampled_transfers for one in results.values()):
            drawn += [windows, rates]
    return drawn


def _in_rows(drawn: Sequence[Draw]) -> Any:
    """A Figure with two plots in each row."""
    from matplotlib.figure import Figure

    rows = max(-(-len(drawn) // 2), 1)
    made = Figure(figsize=(11, 3.4 * rows))
    axes = made.subplots(rows, 2, squeeze=False).ravel()
    for axis, draw in zip(axes, drawn, strict=False):
        draw(axis)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    return made


def _alone(draw: Draw) -> Any:
    from matplotlib.figure import Figure

    made = Figure(figsize=(5.5, 3.4))
    draw(made.subplots())
    return made


SWEPT = {
    "completion_ns": ("completion", 1e3, "us"),
    "fct_ns_p99": ("FCT p99", 1e3, "us"),
    "slowdown_p99": ("slowdown p99", 1, ""),
    "busbw_bytes_per_s": ("bus bandwidth", 1e9, "GB/s"),
    "retransmits_per_packet": ("retransmits a packet", 1, ""),
    "queue_bytes_p99": ("queue p99", 1e3, "kB"),
}


def sweep_figure(cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]]) -> Any:
    """The plots of a sweep in one Figure."""
    return _in_rows(_drawn_of_sweep(cases, rows))


def sweep_panels(cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]]) -> list[Any]:
    """The plots of a sweep, each in a Figure of its own."""
    return [_alone(draw) for draw in _drawn_of_sweep(cases, rows)]


def _drawn_of_sweep(cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]]) -> list[Draw]:
    measured = [key for key in SWEPT if any(row.get(key) is not None for row in rows.values())]
    return [partial(swept, cases=cases, rows=rows, key=key) for key in measured]


def swept(
    axis: Any, cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]], key: str
) -> None:
    """One measure of a sweep: a dot for each run, and a larger one for the median of each setting.

    If one number is swept, it is the x axis, and a line joins the medians. Otherwise the settings
    are categories, in order.
    """
    title, unit, name = SWEPT[key]
    labels = list(dict.fromkeys(_label(case) for case in cases))
    numbers = [_number(case) for case in cases]
    at: dict[float, list[float]] = {}
    for index in sorted(rows):
        value, number = rows[index].get(key), numbers[index]
        if value is not None:
            place = labels.index(_label(cases[index])) if None in numbers else number
            at.setdefault(float(place or 0), []).append(value / unit)
    for place, values in at.items():
        axis.plot([place] * len(values), values, ".", color="grey", markersize=4)
    medians = [float(np.median(at[place])) for place in sorted(at)]
    axis.plot(sorted(at), medians, "o" if None in numbers else "o-")
    if None in numbers:
        axis.set_xticks(range(len(labels)), labels, fontsize="x-small", rotation=20, ha="right")
    else:
        axis.set_xlabel(plain(next(iter(cases[0].settings))))
    axis.set_title(title)
    axis.set_ylabel(name)
    axis.set_ylim(bottom=0)


def _label(case: Case) -> str:
    """The settings, a line each; of a key only its last part, and of a file only its name."""
    return plain("\n".join(_setting(*one) for one in case.settings.items())) or "all seeds"


def _setting(key: str, value: Any) -> str:
    return f"{key.rpartition('.')[2]}={str(value).rpartition('/')[2]}"


def _number(case: Case) -> float | None:
    """The value of the case's setting if it has just one and that is a number, else None."""
    values = list(case.settings.values())
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], int | float):
        return None
    return float(values[0])


def plain(text: str) -> str:
    """The text as a label in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _steps(axis: Any, values: Array, label: str) -> None:
    ordered = np.sort(values)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    axis.plot(ordered, share, drawstyle="steps-post", linewidth=1.2, label=label)


def _jobs(results: Results) -> Iterator[tuple[str, Result, Array]]:
    """Each job of each run: its label, the run, and a mask of its received transfers."""
    for run, result in results.items():
        work = result.scenario.work
        job = work.transfers["job"][result.done]
        for number, name in enumerate(work.names):
            if (job == number).any():
                parts = (run, name if len(work.names) > 1 else "")
                yield plain(", ".join(filter(None, parts))), result, job == number


def _legend(axis: Any, **how: Any) -> None:
    """Adds a legend if there are several labels, and not too many."""
    if 1 < len(axis.get_legend_handles_labels()[1]) <= LABELS_MAX:
        axis.legend(fontsize="x-small", **how)


def fct_cdf(axis: Any, results: Results) -> None:
    """The CDF of flow completion times."""
    for label, result, mine in _jobs(results):
        _steps(axis, result.fct_ns[mine] / 1e3, label)
    axis.set_xlabel("FCT (us)")
    axis.set_ylabel("share of transfers")
    axis.set_title("flow completion time")
    _legend(axis)


def slowdown_cdf(axis: Any, results: Results) -> None:
    """The CDF of slowdowns."""
    for label, result, mine in _jobs(results):
        _steps(axis, result.slowdown[mine], label)
    axis.set_xlabel("slowdown")
    axis.set_ylabel("share of transfers")
    axis.set_title("slowdown: FCT over that of an empty network")
    _legend(axis)


def slowdown_by_size(axis: Any, results: Results) -> None:
    """Quantiles of the slowdown by message size: a colour for each job, a line for each quantile.

    A quantile of too few transfers is left out.
    """
    jobs: dict[str, list[dict[str, Any]]] = {}
    for run, result in results.items():
        several = len(result.scenario.work.names) > 1
        for row in result.slowdown_by_size:
            label = plain(", ".join(filter(None, (run, row["job"] if several else ""))))
            jobs.setdefault(label, []).append(row)
    groups = {row["bytes_to"]: by_size.label(row) for rows in jobs.values() for row in rows}
    places = {end: place for place, end in enumerate(sorted(groups))}
    for number, (label, rows) in enumerate(jobs.items()):
        title: str | None = label
        for name, style in QUANTILE_STYLES.items():
            found = [
                (places[row["bytes_to"]], row[f"slowdown_{name}"])
                for row in rows
                if row[f"slowdown_{name}"] is not None
            ]
            if found:
                line = {"color": f"C{number}", "linestyle": style, "linewidth": 1.2}
                axis.plot(*zip(*found, strict=True), marker=".", label=title, **line)
                text = f" {name}".replace("p999", "p99.9")
                axis.annotate(text, found[-1], fontsize="x-small")
                title = None
    axis.set_xticks(
        range(len(places)), [groups[end] for end in places], fontsize="x-small", rotation=20
    )
    axis.set_xlim(-0.5, max(len(places), 1) - 0.5)
    axis.set_yscale("log")
    for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        formatter("{x:g}")
    axis.set_ylabel("slowdown")
    axis.set_title("slowdown by message size")
    _legend(axis)


def link_use(axis: Any, results: Results) -> None:
    """A heat map of link utilisation: a row for each tier, a cell for each of its links."""
    labels, rows = [], []
    for run, result in results.items():
        tiers = result.scenario.network.tier_ports
        busy = result.ports["busy_ns"] / max(int(result.totals["ended_ns"]), 1)
        width = min(max(len(ports) for ports in tiers.values()), PORTS_SHOWN)
        labels += [plain(f"{name}\n{run}".rstrip()) for name in tiers]
        rows += [_stretched(busy[ports], width) for ports in tiers.values()]
    image = axis.imshow(
        np.stack(rows), aspect="auto", vmin=0, vmax=1, cmap="magma", interpolation="nearest"
    )
    axis.set_yticks(
        range(len(labels)), labels, fontsize="small" if len(results) == 1 else "xx-small"
    )
    axis.set_xticks([])
    axis.set_xlabel("links of the tier")
    axis.set_title("link utilisation")
    axis.figure.colorbar(image, ax=axis, label="share of the time")


def _stretched(values: Array, width: int) -> Array:
    """Scales a row of links to `width` cells: each has the maximum of the links that it covers."""
    edges = np.linspace(0, len(values), width + 1)
    return np.array(
        [
            values[int(low) : max(int(np.ceil(high)), int(low) + 1)].max()
            for low, high in itertools.pairwise(edges)
        ]
    )


def _rows(result: Result, name: str) -> Array:
    return result.samples[name].reshape(len(result.samples["at_ns"]), -1)


def queues(axis: Any, results: Results) -> None:
    """The sampled queues, and the deepest queue of all switches."""
    for number, (run, result) in enumerate(results.items()):
        at_us = result.samples["at_ns"] / 1e3
        own = result.scenario
        label = plain(f"deepest of all {run}".rstrip())
        color = "grey" if len(results) == 1 else f"C{number}"
        deepest = result.samples["queue_bytes_max"] / 1e3
        axis.plot(at_us, deepest, color=color, linewidth=1, label=label)
        for column, port in enumerate(own.sampled_ports()):
            values = _rows(result, "queue_bytes")[:, column] / 1e3
            label = plain(f"{own.network.port_name(int(port))} {run}".rstrip())
            axis.plot(at_us, values, linewidth=1, linestyle=STYLES[number], label=label)
    axis.set_title("queues")
    _legend(axis)
    axis.set_xlabel("us")
    axis.set_ylabel("kB")


def _connections(axis: Any, results: Results, values_of: Callable[[Result], Array]) -> None:
    """A line for each sampled connection, with a colour for each connection or, of several
    runs, for each run."""
    for number, (run, result) in enumerate(results.items()):
        work, names = result.scenario.work.transfers, result.scenario.network.node_names
        values = values_of(result)
        for column, one in enumerate(result.sampled_transfers):
            ends = f"{names[work['from'][one]]} to {names[work['to'][one]]}"
            several = len(results) > 1
            label = plain(run if several else ends) if not (several and column) else None
            color = f"C{number if several else column}"
            at_us = result.samples["at_ns"] / 1e3
            axis.plot(at_us, values[:, column], color=color, linewidth=1, label=label)
    axis.set_xlabel("us")
    _legend(axis)


def windows(axis: Any, results: Results) -> None:
    """The congestion windows of the sampled connections."""
    _connections(axis, results, lambda result: _rows(result, "window_bytes") / 1e3)
    axis.set_ylabel("kB")
    axis.set_title("congestion window")


def rates(axis: Any, results: Results) -> None:
    """The rates of the sampled connections, in acknowledged bits per second."""
    _connections(axis, results, _gigabits_per_s)
    axis.set_ylabel("Gb/s")
    axis.set_title("acknowledged")


def _gigabits_per_s(result: Result) -> Array:
    sent = _rows(result, "sent_bytes").astype(np.float64)
    step = np.diff(result.samples["at_ns"], prepend=0).astype(np.float64)
    return np.asarray(np.diff(sent, axis=0, prepend=0) / np.maximum(step, 1)[:, None] * 8)
