"""Checks traces of a stock NCCL in trouble: aborts, kills, splits, graphs, a chained profiler.

Usage: python -m tests.device.trace_faults [JSON]. Without JSON, prints the findings only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.lib.common import ROOT, document
from bench.nccl import NET_ONLY, SOCKET, driver, weft
from tests.device.trace_checks import launch
from tests.device.trace_fault_rank import ELEMENTS, REPLAYS
from transport import native
from transport.trace import Record, Segment, read_segment

RUN_S_MAX = 120
Row = dict[str, Any]


def segments_of(folder: Path) -> dict[str, list[Segment]]:
    """The segments of each process, by the common part of their names."""
    found: dict[str, list[Segment]] = {}
    for path in sorted(folder.iterdir()):
        found.setdefault(path.name.rsplit("-", 1)[0], []).append(read_segment(path))
    return found


def of(segments: list[Segment], kind: str) -> list[Record]:
    return [one for each in segments for one in each.records if one.kind == kind]


def start(
    task: str, ranks: int, folder: Path, variables: Mapping[str, str]
) -> list[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "WEFT_"))}
    base |= dict(variables) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    base |= {"WORLD_SIZE": str(ranks), "WEFT_TRACE": str(folder), "NCCL_SOCKET_IFNAME": "lo"}
    started = []
    for rank in range(ranks):
        mine = {"RANK": str(rank), "CHECK_GPU": str(rank % 2)}
        if ranks > 2:
            mine["NCCL_HOSTID"] = f"host{rank}"
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.device.trace_fault_rank", task],
                env=base | mine,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def finished(processes: list[subprocess.Popen[str]]) -> list[tuple[int, Any, str]]:
    """The exit status, RESULT and end of stderr of each process."""
    found = []
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        for process in processes:
            out, err = process.communicate(timeout=RUN_S_MAX)
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            found.append(
                (process.returncode, json.loads(lines[0][7:]) if lines else None, err[-800:])
            )
    return found


def ended(rows: list[tuple[int, Any, str]]) -> dict[str, Any]:
    bad = [err for status, _, err in rows if status != 0]
    return {"statuses": [status for status, _, _ in rows]} | ({"stderr": bad[0]} if bad else {})


def aborts(folder: Path) -> Row:
    done = finished(start("abort", 2, folder, weft()))
    traces = segments_of(folder)
    counts = {name: len(of(each, "communicator")) for name, each in traces.items()}
    aborted = 0
    for each in traces.values():
        closed = {one.id for one in of(each, "channel_end")}
        with_channels = {
            one.fields["operation"] for one in of(each, "channel") if one.id not in closed
        }
        aborted += len(with_channels)
    right = all(status == 0 for status, _, _ in done) and len(traces) == 2
    right &= all(found == {"sum": 2.0} for _, found, _ in done)
    right &= all(count >= 2 for count in counts.values()) and aborted >= 1
    return {
        "communicators": sorted(counts.values()),
        "operations_cut": aborted,
        "damage": sorted({one.damage for each in traces.values() for one in each}),
        "equal": right,
    } | ended(done)


def splits(folder: Path, shrink: bool) -> Row:
    more = {"CHECK_SHRINK": "1"} if shrink else {}
    done = finished(start("split", 4, folder, weft() | more))
    traces = segments_of(folder)
    names, sizes, ids = set(), set(), set()
    pair_operations = 0
    for each in traces.values():
        for one in of(each, "communicator"):
            names.add(str(one.fields["name"]))
            sizes.add(int(one.fields["ranks"]))
            ids.add(one.fields["comm_id"])
        pairs = {one.id for one in of(each, "communicator") if one.fields["ranks"] == 2}
        pair_operations += sum(one.fields["communicator"] in pairs for one in of(each, "operation"))
    right = all(status == 0 for status, _, _ in done) and len(traces) == 4
    right &= {4, 2} <= sizes and pair_operations == 12
    if shrink and all(found and found["shrunk"] in (3, "left out") for _, found, _ in done):
        right &= 3 in sizes
    return {
        "names": sorted(names),
        "sizes": sorted(sizes),
        "ids": len(ids),
        "shrunk": [found and found["shrunk"] for _, found, _ in done],
        "pair_operations": pair_operations,
        "equal": right,
    } | ended(done)


def graphs(folder: Path) -> Row:
    done = finished(start("graph", 2, folder, weft() | {"NCCL_ALGO": "Ring"}))
    moved = []
    captured = called = operations = 0
    for each in segments_of(folder).values():
        begins = {one.id: one for one in of(each, "channel")}
        moved.append(
            sum(
                int(end.fields["bytes"])
                for end in of(each, "channel_end")
                if begins[end.id].fields["sends"]
            )
        )
        operations += len(of(each, "operation"))
        captured += sum(bool(one.fields["captured"]) for one in of(each, "operation"))
        called += sum(
            0 < int(one.fields["called_ns"]) <= one.time_ns for one in of(each, "operation")
        )
    # The first all-reduce and each replay move 2 (n - 1) / n of the buffer, with n = 2 all of it.
    want = ELEMENTS * 4 * (1 + REPLAYS)
    right = all(status == 0 for status, _, _ in done) and moved == [want, want]
    right &= captured > 0 and called > 0
    return {
        "moved_bytes": moved,
        "expected_bytes": want,
        "captured": captured,
        "operations": operations,
        "with_call": called,
        "equal": right,
    } | ended(done)


def kills(folder: Path) -> Row:
    processes = start("endless", 2, folder, weft())
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        assert processes[1].stdout is not None
        assert any("RUNNING" in line for line in processes[1].stdout)
        time.sleep(3)
        processes[1].send_signal(signal.SIGKILL)
        at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        time.sleep(2)
    found: list[Row] = []
    for each in segments_of(folder).values():
        closed = {one.id for one in of(each, "channel_end")}
        cut = [one for one in of(each, "channel") if one.id not in closed]
        last = max(one.time_ns for segment in each for one in segment.records)
        operations = {one.id: one.fields for one in of(each, "operation")}
        named = [operations.get(int(one.fields["operation"]), {}) for one in cut]
        found.append(
            {
                "ns_before_the_kill": at_ns - last,
                "cut_channels": len(cut),
                "functions": sorted({str(one.get("function")) for one in named}),
                "peers": sorted({int(one.fields["peer"]) for one in cut}),
                "damage": sorted({segment.damage for segment in each}),
            }
        )
    right = len(found) == 2 and all(one["ns_before_the_kill"] < 1_000_000_000 for one in found)
    # The survivor waits in an operation; the killed rank may have been between two operations.
    right &= any(one["functions"] == ["AllReduce"] for one in found)
    return {"processes": found, "equal": right}


def chains(folder: Path) -> Row:
    library = folder.parent / "libchained.so"
    subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-shared",
            "-fPIC",
            f"-I{ROOT}",
            "-o",
            str(library),
            str(ROOT / "tests/plugin/profiler/chained.cc"),
        ],
        check=True,
    )
    report = folder.parent / "report.json"
    more = {"WEFT_PROFILER_CHAIN": str(library), "CHAIN_REPORT": str(report)}
    results = launch("collectives", 2, 2, folder, weft() | more)
    counts = json.loads(report.read_text())
    foreign = {name: count for name, count in counts.items() if name.startswith("foreign")}
    traces = segments_of(folder)
    traced = [len(of(each, "operation")) for each in traces.values()]
    right = not foreign and counts.get("finalized", 0) >= 1
    right &= all(result["wrong"] == 0 for result in results) and min(traced) > 10
    return {"counts": counts, "traced_operations": traced, "equal": right}


def kernels(folder: Path) -> Row:
    """With a sample of one in four, some operations have the times of their kernels, not all."""
    launch("collectives", 2, 2, folder, weft() | {"WEFT_TRACE_KERNELS": "4"})
    found = []
    right = True
    for each in segments_of(folder).values():
        timed = of(each, "kernel")
        with_times = {one.fields["operation"] for one in timed}
        known = {one.id for one in of(each, "operation")}
        spans = [int(o.fields["gpu_stop_ns"]) - int(o.fields["gpu_start_ns"]) for o in timed]
        found.append({"operations": len(known), "with_kernels": len(with_times)})
        right &= 0 < len(with_times) < len(known) * 0.6 and with_times <= known
        right &= all(0 < span < 10**9 for span in spans)
    return {"processes": found, "equal": right}


def under_socket(folder: Path) -> Row:
    """Under NCCL's own Socket transport, channels are measured and there are no paths."""
    more = {"NCCL_PROFILER_PLUGIN": str(native.PLUGIN_PATH), "NCCL_ALGO": "Ring"}
    launch("collectives", 2, 2, folder, NET_ONLY | SOCKET | more)
    moved, messages = [], 0
    for each in segments_of(folder).values():
        begins = {one.id: one for one in of(each, "channel")}
        moved.append(
            sum(
                int(end.fields["bytes"])
                for end in of(each, "channel_end")
                if begins[end.id].fields["sends"]
            )
        )
        messages += len(of(each, "message"))
    return {"moved_bytes": moved, "messages": messages, "equal": min(moved) > 0 and messages == 0}


def main() -> None:
    cases = {
        "abort in mid-operation": aborts,
        "split": lambda folder: splits(folder, False),
        "split and shrink": lambda folder: splits(folder, True),
        "graph": graphs,
        "kill -9": kills,
        "chained profiler": chains,
        "sampled kernels": kernels,
        "NCCL's Socket": under_socket,
    }
    rows: list[Row] = []
    for name, check in cases.items():
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text) / "trace"
            folder.mkdir()
            try:
                row = check(folder)
            except (RuntimeError, subprocess.SubprocessError, OSError, AssertionError) as error:
                row = {"failed": str(error)[-600:], "equal": False}
        rows.append({"run": name} | row)
        print(json.dumps(rows[-1]), flush=True)
    import torch

    facts = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "driver": driver()}
    facts["local"] = weft()["WEFT_LOCAL"]
    facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(document("trace-faults", rows, **facts), indent=1))
    wrong = [row for row in rows if row.get("equal") is False]
    print(f"{len(rows) - len(wrong)} of {len(rows)} rows as expected")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
