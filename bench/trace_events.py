"""Measures what the calls of NCCL's profiler cost the thread of NCCL that makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from bench.lib import loops
from bench.lib.common import ROOT, Config, document, emit, interruptible, json_option, rounds
from transport import native
from transport.trace import read_segment

# Operation -> channels, and steps of a channel in each direction. A small all-reduce has one step.
SHAPES = {"1 channel, 1 step": (1, 1), "2 channels, 128 steps": (2, 128)}
COLUMNS = ("operation", "round", "calls", "ns_per_call", "ns_per_operation", "records", "dropped")


def measured(channels: int, steps: int, operations: int) -> Config:
    """Measures one shape, in a process of its own, because the plugin reads its knobs once."""
    found = loops.bench_profiler(str(native.PLUGIN_PATH), operations, channels, steps)
    segments = [read_segment(path) for path in Path(os.environ["WEFT_TRACE"]).iterdir()]
    records = sum(len(one.records) for one in segments)
    return {
        "calls": found["calls_per_operation"],
        "ns_per_call": found["ns_per_operation"] / found["calls_per_operation"],
        "ns_per_operation": found["ns_per_operation"],
        "records": records / operations,
        "dropped": max(one.dropped for one in segments),
    }


@click.command("trace-events")
@click.option("--operations", default=2_048, show_default=True, help="Profiled operations.")
@click.option("--repeats", default=5, show_default=True, help="Interleaved rounds.")
@json_option
def command(operations: int, repeats: int, json_path: str | None) -> None:
    """Measures the profiler's calls as NCCL makes them, with a trace that is written to disk."""
    if not native.PLUGIN_PATH.exists():
        raise click.ClickException(f"no plugin ({native.PLUGIN_PATH}): run make build")
    # If the extension is not built, this error is shorter than that of a measuring process.
    loops.load()
    rows: list[Config] = []
    with interruptible() as cut:
        for round_, name in rounds(repeats, tuple(SHAPES)):
            channels, steps = SHAPES[name]
            count = max(operations // steps, 64)
            with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
                script = (
                    "import json; from bench.trace_events import measured; "
                    f"print(json.dumps(measured({channels}, {steps}, {count})))"
                )
                done = subprocess.run(
                    [sys.executable, "-c", script],
                    cwd=ROOT,
                    env=os.environ | {"WEFT_TRACE": folder},
                    check=False,
                    capture_output=True,
                    text=True,
                )
            if done.returncode != 0:
                raise click.ClickException(f"the measuring process failed: {done.stderr[-500:]}")
            rows.append({"operation": name, "round": round_, **json.loads(done.stdout)})
    notes = ["calls, records: of one operation; ns: time of the calling thread"]
    emit(document("trace-events", rows), json_path, COLUMNS, notes, cut)


if __name__ == "__main__":
    command()
