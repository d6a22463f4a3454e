"""Measures what tracing costs NCCL: pairs of runs over weft, without and with a trace."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from bench.lib.common import Config, document, emit, interruptible, json_option, rounds
from bench.lib.nccl_hosts import Hosts
from bench.lib.stats import upper_of_median
from bench.nccl import driver, run, weft
from transport import native
from transport.trace import read_segment

# Bytes of the all-reduces -> calls in one timing.
CALLS = {8: 2_000, 128 << 20: 20}
COLUMNS = ("size_bytes", "pairs", "off_us", "on_us", "ratio", "upper", "spread")


def contents(folder: Path) -> Config:
    """Sizes and counts of what one traced run wrote."""
    kinds: dict[str, int] = {}
    size_bytes = dropped = 0
    for path in folder.iterdir():
        segment = read_segment(path)
        size_bytes += path.stat().st_size
        dropped = max(dropped, segment.dropped)
        for record in segment.records:
            kinds[record.kind] = kinds.get(record.kind, 0) + 1
    return {"trace_bytes": size_bytes, "dropped": dropped, "records": kinds}


def summary(rows: Sequence[Config]) -> list[Config]:
    """One row for each size: medians, and the ratios on/off of the paired times."""
    found = []
    for size in CALLS:
        times = {
            name: [r["time_us"] for r in rows if (r["size_bytes"], r["contender"]) == (size, name)]
            for name in ("off", "on")
        }
        ratios = [on / off for off, on in zip(times["off"], times["on"], strict=False)]
        if not ratios:
            continue
        found.append(
            {
                "size_bytes": size,
                "pairs": len(ratios),
                "off_us": statistics.median(times["off"]),
                "on_us": statistics.median(times["on"]),
                "ratio": statistics.median(ratios),
                "upper": upper_of_median(ratios),
                "spread": max(times["off"]) / min(times["off"]),
            }
        )
    return found


@click.command("trace-cost")
@click.option("--gpus", default=2, show_default=True, help="Ranks, one per GPU.")
@click.option("--repeats", default=20, show_default=True, help="Pairs of runs.")
@json_option
def command(gpus: int, repeats: int, json_path: str | None) -> None:
    """Measures all-reduces over weft without and with a trace, in pairs; checks every sum."""
    if not native.PLUGIN_PATH.exists():
        raise click.ClickException(f"no plugin ({native.PLUGIN_PATH}): run make build")
    task = {"train": "", "sizes": list(CALLS), "calls": CALLS, "operations": ["all_reduce"]}
    rows: list[Config] = []
    facts: Config = {}
    with interruptible() as cut:
        for round_, _ in rounds(repeats, ["pair"]):
            # Every second pair begins with the trace, so that a drift of the machine cancels out.
            for name in ("off", "on") if round_ % 2 == 0 else ("on", "off"):
                with tempfile.TemporaryDirectory(prefix="weft-trace-") as text:
                    folder = Path(text)
                    variables = weft() | ({"WEFT_TRACE": text} if name == "on" else {})
                    (result,) = run("weft", variables, gpus, task, Hosts())
                    facts |= result["facts"]
                    if name == "on" and round_ == 0:
                        facts |= contents(folder)
                    rows += [{"contender": name, "round": round_} | r for r in result["found"]]
    found = document("trace-cost", summary(rows), gpus=gpus, driver=driver(), **facts)
    notes = [
        f"{row['size_bytes']} B: median of paired ratios {row['ratio']:.4f}, upper 95 % bound "
        f"{row['upper']:.4f}"
        for row in found["rows"]
    ]
    notes.append("ratio: time of an all-reduce with a trace / without one, by pair")
    emit(found | {"rounds": rows}, json_path, COLUMNS, notes, cut)
    if any(row["wrong"] for row in rows):
        raise click.ClickException("an all-reduce had a wrong sum: the results are not valid")
