"""Formats the tables of a run or sweep as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transport.ground.units import bytes_text, percent, rate_text, time_text
from transport.sim import by_size
from transport.sim.result import IDEAL, Result
from transport.sim.sweep import MEASURES

Rows = tuple[list[str], list[list[str]]]
NOT_JUDGED = "-"  # a quantile of too few transfers

JOBS = {
    "job": "job",
    "ranks": "ranks",
    "done": "done",
    "completion_ns": "completion",
    "fct_ns_p50": "FCT p50",
    "fct_ns_p95": "p95",
    "fct_ns_p99": "p99",
    "fct_ns_max": "max",
    "slowdown_p50": "slowdown p50",
    "slowdown_p99": "p99 ",
    "slowdown_max": "max ",
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "jain": "Jain",
    "goodput_bytes_per_s": "goodput",
}
SIZES = {
    "job": "job",
    "size": "message size",
    "transfers": "transfers",
    "slowdown_p50": "slowdown p50",
    "slowdown_p95": "p95",
    "slowdown_p99": "p99",
    "slowdown_p999": "p99.9",
    "slowdown_max": "max",
}
STEPS = {
    "job": "job",
    "operations": "operations",
    "steps": "steps",
    "step_ns": "time of a step",
    "compute_ns": "computing",
    "network_ns": "in the network",
    "exposed_share": "not computing",
}
COEXISTENCE = {
    "group": "policies of group",
    "connections": "connections",
    "done": "done",
    "share": "share of bytes",
    "fair_share": "fair share",
    "jain": "Jain",
    "goodput_bytes_per_s": "goodput of one",
    "harm_goodput": "harm",
    "fct_ns_p50": "FCT p50",
    "harm_fct_p50": "harm ",
    "fct_ns_p99": "FCT p99",
    "harm_fct_p99": "harm  ",
}
TIERS = {
    "tier": "tier",
    "links": "links",
    "utilisation": "used",
    "utilisation_max": "used max",
    "imbalance": "max/mean",
    "queue_bytes_p50": "queue p50",
    "queue_bytes_p99": "p99",
    "queue_bytes_max": "max",
    "marked": "marked",
    "trimmed": "trimmed",
    "dropped": "dropped",
    "lost": "lost",
    "pauses": "pauses",
}

SWEEP = {
    "fct_ns_p50": "FCT p50",
    "fct_ns_p99": "FCT p99",
    "slowdown_p99": "slowdown p99",
    "completion_ns": "completion",
    "busbw_bytes_per_s": "busbw",
    "retransmits_per_packet": "resent",
    "queue_bytes_p99": "queue p99",
}


def cell(key: str, value: Any) -> str:
    """A value as text, with the unit that the name of its key implies."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    plain = key.removesuffix("_worst")
    if "_ns" in plain:
        return time_text(value)
    if plain.endswith("bytes_per_s"):
        return rate_text(value)
    if "_bytes" in plain or plain.startswith("queue_bytes"):
        return bytes_text(value)
    if plain.startswith(("utilisation", "exposed", "harm_")) or plain in ("share", "fair_share"):
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Rows:
    """A table of the columns in which any row has a value."""
    kept = [key for key in columns if any(row.get(key) not in (None, "") for row in rows)]
    return [columns[key] for key in kept], [
        [cell(key, row.get(key)) for key in kept] for row in rows
    ]


def _judged(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], count: str
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The columns and rows with "-" for a quantile of too few transfers.

    count: the key of their number. A column of "-" alone is left out, unless it is the median.
    """
    shown = [
        {
            key: value if value is None or by_size.is_judged(key, row[count]) else NOT_JUDGED
            for key, value in row.items()
        }
        for row in rows
    ]
    kept = {
        key: title
        for key, title in columns.items()
        if key.endswith("_p50") or any(row.get(key) not in (None, NOT_JUDGED) for row in shown)
    }
    return kept, shown


def jobs(results: Mapping[str, Result]) -> Rows:
    """One row per job of each run; "-": too few transfers for this quantile.

    The label of a run is empty if there is just one.
    """
    rows = [{**row, "run": run} for run, result in results.items() for row in result.jobs]
    columns, shown = _judged({"run": "policy", **JOBS}, rows, "done")
    said = [{**row, "done": f"{row['done']:,}/{row['transfers']:,}"} for row in shown]
    return _table(columns, said)


def sizes(results: Mapping[str, Result]) -> Rows:
    """One row per job and group of message sizes of each run; "-": too few for this quantile."""
    rows = [
        {"run": run, **row, "size": by_size.label(row)}
        for run, result in results.items()
        for row in result.slowdown_by_size
    ]
    return _sizes({"run": "policy"}, SIZES, rows)


def _sizes(
    first: Mapping[str, str], columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> Rows:
    """A table with the columns of which any value is known; None is a quantile not judged."""
    judged = {key for row in rows for key, value in row.items() if value is not None}
    kept = judged | {"slowdown_p50"}
    shown = {key: title for key, title in columns.items() if key in kept}
    filled = [{key: NOT_JUDGED if row[key] is None else row[key] for key in row} for row in rows]
    return _table({**first, **shown}, filled)


def steps(result: Result) -> Rows:
    """One row per job that runs a program."""
    rows = [row if row["finished"] else {**row, "steps": "not finished"} for row in result.steps]
    return _table(STEPS, rows)


def coexistence(results: Mapping[str, Result]) -> Rows:
    """One row per group of policies of each mixed run; "-": too few transfers for a quantile."""
    rows = []
    for run, result in results.items():
        for row in result.coexistence.get("groups", ()):
            shown = {"run": run, **row}
            for name in ("p50", "p99"):
                harm, judged = f"harm_fct_{name}", by_size.is_judged(f"fct_ns_{name}", row["done"])
                if harm in row and not judged:
                    shown[harm] = NOT_JUDGED
            rows.append(shown)
    columns, shown_rows = _judged({"run": "policy", **COEXISTENCE}, rows, "done")
    said = [{**row, "done": f"{row['done']:,}/{row['transfers']:,}"} for row in shown_rows]
    return _table(columns, said)


def tiers(results: Mapping[str, Result]) -> Rows:
    """One row per tier of links of each run. Columns that are zero everywhere are left out."""
    rows = [{"run": run, **row} for run, result in results.items() for row in result.tiers]
    quiet = [
        k
        for k in ("marked", "trimmed", "dropped", "lost", "pauses")
        if not any(row[k] for row in rows)
    ]
    shown = {"run": "policy", **TIERS}
    return _table({k: v for k, v in shown.items() if k not in quiet}, rows)


def remarks(result: Result) -> list[str]:
    """Sentences with results that are not in the tables."""
    row = result.summary()
    said = [
        f"{row['retransmits_per_packet']:.4f} retransmits per packet "
        f"({row['retransmits']:,}, {row['spurious_resends']:,} of them needless), "
        f"{percent(row['marked_share'], 2)} of data packets marked on a link, "
        f"{row['trimmed']:,} trimmed, {row['dropped']:,} dropped, {row['lost']:,} lost",
        f"{time_text(row['virtual_ns'])} of virtual time, {row['packet_hops']:,} packet-hops",
        IDEAL,
    ]
    if result.buffers.size:
        said.insert(-1, _buffers(result))
    if result.coexistence:
        said.insert(0, _contended(result.coexistence))
    if not result.finished:
        left = row["transfers"] - row["done"]
        said.append(f"{left:,} of {row['transfers']:,} transfers did not finish")
    return said


def _buffers(result: Result) -> str:
    """The switch whose shared buffer was used most."""
    own = result.scenario
    fullest = int(result.buffers.argmax())
    used, size = int(result.buffers[fullest]), own.keys["network"]["buffer_bytes"]
    return (
        f"shared buffers: at most {used:,} of {size:,} bytes ({percent(used / size)}) in use, in "
        f"{own.network.node_names[own.network.hosts + fullest]}"
    )


def _contended(found: Mapping[str, Any]) -> str:
    if not found["contended_ns"]:
        return "no two groups of policies were in the network at the same time"
    return (
        f"groups of policies contended for {time_text(found['contended_ns'])}; Jain of all their "
        f"connections {found['jain']:.3f}"
    )


def sweep(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """One row per setting, with median and worst over the seeds.

    A quantile is "-" if one of the runs has too few transfers for it.
    """
    columns = _settings(rows)
    for name, title in SWEEP.items():
        columns |= {name: title, f"{name}_worst": "worst"}
    return _table(*_judged(columns, [{"done_worst": 0, **row} for row in rows], "done_worst"))


def sweep_sizes(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """One row per setting, job and group of message sizes: the rows of sizes_summarised."""
    columns = {"job": "job", "size": "message size", "transfers": "fewest transfers"}
    for name, title in SIZES.items():
        if name.startswith("slowdown"):
            columns |= {name: title, f"{name}_worst": "worst"}
    settings = _settings([{key: row[key] for key in _until("job", row)} for row in rows[:1]])
    return _sizes(settings, columns, [{**row, "size": by_size.label(dict(row))} for row in rows])


def sweep_runs(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """One row per run of a sweep: its settings, seed and main measures."""
    given = [{key: row[key] for key in _until("seed", row)} for row in rows[:1]]
    columns = {**_settings(given), "seed": "seed", **SWEEP, "good": "good", "problem": "problem"}
    return _table(*_judged(columns, [{"done": 0, **row} for row in rows], "done"))


def _until(last: str, row: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a row before this one: of a run's row, its settings are those before its seed."""
    return itertools.takewhile(lambda key: key != last, row)


def _settings(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Key of a setting -> its heading: the last part of the key unless two end in the same part."""
    settings = [
        key for row in rows[:1] for key in row if key not in MEASURES and not key.endswith("_worst")
    ]
    last = [key.rpartition(".")[2] for key in settings]
    return dict(zip(settings, last if len(set(last)) == len(last) else settings, strict=True))
