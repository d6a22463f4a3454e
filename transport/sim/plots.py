"""Plots a run or a sweep: FCTs, windows, rates, queues and links."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transport.sim.network import Array
from transport.sim.result import Result
from transport.sim.sweep import Case

INSTALL_MATPLOTLIB = "pip install matplotlib"
PORTS_SHOWN = 512


def figure(result: Result) -> Any:
    """All plots of a run in one matplotlib Figure; some need samples."""
    from matplotlib.figure import Figure

    drawn = [fct_cdf, slowdown_by_size, link_use]
    if result.samples and len(result.samples["at_ns"]) > 1:
        drawn += [queues]
        drawn += [windows, rates] if result.sampled_transfers else []
    rows = -(-len(drawn) // 2)
    made = Figure(figsize=(11, 3.4 * rows))
    axes = made.subplots(rows, 2, squeeze=False).ravel()
    for axis, draw in zip(axes, drawn, strict=False):
        draw(axis, result)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
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
    """One plot per measure: a dot for each run, and a line through the median of each setting.

    If one number is swept, it is the x axis. Otherwise the settings are categories, in order.
    """
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(_label(case) for case in cases))
    numbers = [_number(case) for case in cases]
    drawn = [key for key in SWEPT if any(rows[index].get(key) is not None for index in rows)]
    made = Figure(figsize=(11, 3.4 * max(-(-len(drawn) // 2), 1)))
    axes = made.subplots(max(-(-len(drawn) // 2), 1), 2, squeeze=False).ravel()
    for axis, key in zip(axes, drawn, strict=False):
        title, unit, name = SWEPT[key]
        at: dict[float, list[float]] = {}
        for index in sorted(rows):
            value, number = rows[index].get(key), numbers[index]
            if value is not None:
                place = labels.index(_label(cases[index])) if None in numbers else number
                at.setdefault(float(place or 0), []).append(value / unit)
        for place, values in at.items():
            axis.plot([place] * len(values), values, ".", color="grey", markersize=4)
        axis.plot(sorted(at), [float(np.median(at[place])) for place in sorted(at)], marker="o")
        if None in numbers:
            axis.set_xticks(range(len(labels)), labels, fontsize="x-small", rotation=20)
        else:
            axis.set_xlabel(next(iter(cases[0].settings)))
        axis.set_title(title)
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    return made


def _label(case: Case) -> str:
    return "\n".join(f"{key}={value}" for key, value in case.settings.items()) or "all seeds"


def _number(case: Case) -> float | None:
    """The value of the case's setting if it has just one and that is a number, else None."""
    values = list(case.settings.values())
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], int | float):
        return None
    return float(values[0])


def _steps(axis: Any, values: Array, label: str) -> None:
    ordered = np.sort(values)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    axis.plot(ordered, share, drawstyle="steps-post", linewidth=1.2, label=label)


def _jobs(result: Result) -> list[tuple[str, Array]]:
    """Each job's name, and a mask of the received transfers that belong to it."""
    work = result.scenario.work
    job = work.transfers["job"][result.done]
    return [(name, job == number) for number, name in enumerate(work.names)]


def fct_cdf(axis: Any, result: Result) -> None:
    """The CDF of flow completion times."""
    for name, mine in _jobs(result):
        if mine.any():
            _steps(axis, result.fct_ns[mine] / 1e3, name)
    axis.set_xlabel("FCT (us)")
    axis.set_ylabel("share of transfers")
    axis.set_title("flow completion time")
    if len(result.scenario.work.names) > 1:
        axis.legend(fontsize="small")


def slowdown_by_size(axis: Any, result: Result) -> None:
    """The slowdown by message size, or the slowdown's CDF if there are at most eight sizes."""
    sizes = result.scenario.work.transfers["bytes"][result.done]
    axis.set_title("slowdown: FCT over that of an empty network")
    if len(np.unique(sizes)) > 8:
        axis.scatter(sizes, result.slowdown, s=3, linewidths=0)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("bytes")
        axis.set_ylabel("slowdown")
        return
    for name, mine in _jobs(result):
        if mine.any():
            _steps(axis, result.slowdown[mine], name)
    axis.set_xlabel("slowdown")
    axis.set_ylabel("share of transfers")


def link_use(axis: Any, result: Result) -> None:
    """A heat map of link utilisation: a row for each tier, a cell for each of its links."""
    tiers = result.scenario.network.tier_ports
    busy = result.ports["busy_ns"] / max(int(result.totals["ended_ns"]), 1)
    width = min(max(len(ports) for ports in tiers.values()), PORTS_SHOWN)
    cells = np.stack([_stretched(busy[ports], width) for ports in tiers.values()])
    image = axis.imshow(cells, aspect="auto", vmin=0, vmax=1, cmap="magma", interpolation="nearest")
    axis.set_yticks(range(len(tiers)), list(tiers))
    axis.set_xticks([])
    axis.set_xlabel("links of the tier")
    axis.set_title("link utilisation")
    axis.figure.colorbar(image, ax=axis)


def _stretched(values: Array, width: int) -> Array:
    """Scales a row of links to `width` cells: each has the maximum of the links that it covers."""
    edges = np.linspace(0, len(values), width + 1)
    return np.array(
        [
            values[int(low) : max(int(np.ceil(high)), int(low) + 1)].max()
            for low, high in itertools.pairwise(edges)
        ]
    )


def _lines(axis: Any, result: Result, values: Array, labels: Sequence[str]) -> None:
    at = result.samples["at_ns"] / 1e3
    for column, label in enumerate(labels):
        axis.plot(at, values[:, column], linewidth=1, label=label)
    axis.set_xlabel("us")
    if 1 < len(labels) <= 10:
        axis.legend(fontsize="x-small")


def _rows(result: Result, name: str) -> Array:
    return result.samples[name].reshape(len(result.samples["at_ns"]), -1)


def queues(axis: Any, result: Result) -> None:
    """The sampled queues, and the deepest queue of all switches."""
    at = result.samples["at_ns"] / 1e3
    own = result.scenario
    names = [own.network.port_name(int(port)) for port in own.sampled_ports()]
    axis.set_title("queues")
    axis.plot(
        at,
        result.samples["queue_bytes_max"] / 1e3,
        color="grey",
        linewidth=1,
        label="deepest of all",
    )
    if names:
        _lines(axis, result, _rows(result, "queue_bytes") / 1e3, names)
    axis.legend(fontsize="x-small")
    axis.set_xlabel("us")
    axis.set_ylabel("kB")


def _connections(result: Result) -> list[str]:
    work, names = result.scenario.work.transfers, result.scenario.network.node_names
    return [
        f"{names[work['from'][one]]} to {names[work['to'][one]]}"
        for one in result.sampled_transfers
    ]


def windows(axis: Any, result: Result) -> None:
    """The congestion windows of the sampled connections."""
    _lines(axis, result, _rows(result, "window_bytes") / 1e3, _connections(result))
    axis.set_ylabel("kB")
    axis.set_title("congestion window")


def rates(axis: Any, result: Result) -> None:
    """The rates of the sampled connections, in acknowledged bytes per second."""
    sent = _rows(result, "sent_bytes").astype(np.float64)
    step = np.diff(result.samples["at_ns"], prepend=0).astype(np.float64)
    rate = np.diff(sent, axis=0, prepend=0) / np.maximum(step, 1)[:, None]
    _lines(axis, result, rate * 8, _connections(result))
    axis.set_ylabel("Gb/s")
    axis.set_title("acknowledged")


def svg(made: Any) -> str:
    """A figure as SVG text; equal figures give equal text."""
    import io

    import matplotlib as mpl

    made.tight_layout()
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "weft", "svg.fonttype": "path"}):
        made.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
