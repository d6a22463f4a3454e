"""Compares traces of a stock NCCL with arithmetic and with PyTorch's own profiler.

Usage: python -m tests.device.trace_checks [JSON [GPUS [RANKS]]]. Without JSON, prints the findings
only. With two GPUs, the default, and no RANKS, all checks; else only the volumes of RANKS, by
default one on each GPU.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from bench.lib.common import document
from bench.nccl import NET_ONLY, UNICAST, driver, weft
from tests.device.trace_rank import CALLS, ELEMENTS
from transport.trace import read_segment

RUN_S_MAX = 180
BYTES = ELEMENTS * 4
Edges = dict[tuple[int, int], int]


def launch(task: str, ranks: int, gpus: int, folder: Path, variables: dict[str, str]) -> list[Any]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "WEFT_"))}
    base |= variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    base |= {"WORLD_SIZE": str(ranks), "WEFT_TRACE": str(folder), "NCCL_SOCKET_IFNAME": "lo"}
    processes = []
    for rank in range(ranks):
        mine = {"RANK": str(rank), "CHECK_GPU": str(rank % gpus)}
        if ranks > gpus:
            mine["NCCL_HOSTID"] = f"host{rank}"  # NCCL refuses two ranks of a host on one GPU
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.device.trace_rank", task],
                env=base | mine,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=RUN_S_MAX)
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if process.returncode != 0 or not lines:
                raise RuntimeError(f"{task}: a rank ended with {process.returncode}: {err[-1500:]}")
            found.append(json.loads(lines[0][7:]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


class Trace:
    """The traces of all ranks; ranks are those of the largest communicator."""

    def __init__(self, folder: Path) -> None:
        # function -> edge (sender, receiver) -> bytes
        self.sent: dict[str, Edges] = defaultdict(lambda: defaultdict(int))
        self.tied: Edges = defaultdict(int)  # edge (sender, receiver) -> bytes of weft's messages
        self.counts: list[Counter[str]] = []
        self.algorithms: set[str] = set()
        self.dropped = 0
        by_process: dict[str, list[Any]] = defaultdict(list)
        for path in sorted(folder.iterdir()):
            segment = read_segment(path)
            assert segment.damage == "", segment.damage
            self.dropped += segment.dropped
            by_process[path.name.rsplit("-", 1)[0]] += segment.records
        for records in by_process.values():
            self._process(records)

    def _process(self, records: list[Any]) -> None:
        rank = {r.id: r.fields["rank"] for r in records if r.kind == "communicator"}
        operation = {r.id: r for r in records if r.kind == "operation"}
        channel = {r.id: r for r in records if r.kind == "channel"}
        self.counts.append(Counter(r.fields["function"] for r in operation.values()))
        self.algorithms |= {r.fields["algorithm"] for r in operation.values()}
        for end in (r for r in records if r.kind == "channel_end"):
            begin = channel[end.id].fields
            if begin["sends"]:
                of = operation.get(begin["operation"])
                edge = (rank[begin["communicator"]], begin["peer"])
                self.sent[of.fields["function"] if of else "?"][edge] += end.fields["bytes"]
        for message in (r for r in records if r.kind == "message" and r.fields["sends"]):
            if (begin := channel.get(message.fields["channel"])) is not None:
                edge = (rank[begin.fields["communicator"]], begin.fields["peer"])
                self.tied[edge] += message.fields["bytes"]


def ring(ranks: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % ranks) for i in range(ranks)]


def expected(function: str, ranks: int) -> dict[str, int]:
    """Bytes that each rank sends, and their sum, computed from each collective's definition."""
    each = {
        "AllReduce": 2 * (ranks - 1) * BYTES // ranks,
        "AllGather": (ranks - 1) * BYTES // ranks,
        "ReduceScatter": (ranks - 1) * BYTES // ranks,
    }
    if function in each:
        return {"each": each[function] * CALLS, "all": each[function] * CALLS * ranks}
    if function in ("Broadcast", "Reduce"):
        return {"all": (ranks - 1) * BYTES * CALLS}
    if function == "Send":  # an all-to-all, and one send of the whole buffer from rank 0 to rank 1
        return {"all": (ranks * (ranks - 1) * (BYTES // ranks) + BYTES) * CALLS}
    raise ValueError(function)


def check_volumes(name: str, ranks: int, algorithm: str, trace: Trace) -> list[dict[str, Any]]:
    rows = []
    for function in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send"):
        edges = trace.sent.get(function, {})
        want = expected(function, ranks)
        by_rank: Counter[int] = Counter()
        for (source, _), count in edges.items():
            by_rank[source] += count
        right = sum(edges.values()) == want["all"]
        if "each" in want and algorithm == "Ring":
            right &= set(by_rank.values()) == {want["each"]} and len(by_rank) == ranks
            right &= len(edges) == ranks
        rows.append(
            {
                "run": name,
                "function": function,
                "ranks": ranks,
                "edges": len(edges),
                "measured_bytes": sum(edges.values()),
                "expected_bytes": want["all"],
                "equal": right,
            }
        )
    total = sum(sum(edges.values()) for edges in trace.sent.values())
    rows.append(
        {
            "run": name,
            "function": "messages of weft",
            "ranks": ranks,
            "edges": len(trace.tied),
            "measured_bytes": sum(trace.tied.values()),
            "expected_bytes": total,
            "equal": sum(trace.tied.values()) == total,
        }
    )
    return rows


def volumes(gpus: int, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    runs = [
        (f"{ranks} ranks on {gpus} GPUs, {algorithm.lower()}", ranks, algorithm)
        for ranks in counts
        for algorithm in ("Ring", "Tree")
    ]
    for name, ranks, algorithm in runs:
        with tempfile.TemporaryDirectory() as text:
            # NCCL_ALGO can set an algorithm for one function; all other functions use the ring.
            algo = "ring;allreduce:tree" if algorithm == "Tree" else "ring"
            variables = weft() | {"NCCL_ALGO": algo, "NCCL_PROTO": "Simple"}
            try:
                results = launch("collectives", ranks, gpus, Path(text), variables)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                rows.append(
                    {"run": name, "function": "failed: " + str(error)[-300:], "equal": False}
                )
                continue
            wrong = sum(result["wrong"] for result in results)
            trace = Trace(Path(text))
            print(name, dict(trace.counts[0]), trace.algorithms, "dropped", trace.dropped)
            checked = check_volumes(name, ranks, algorithm, trace)
            checked += check_matrix(name, Path(text), trace)
            rows += [row | {"wrong_elements": wrong} for row in checked]
    return rows


def matrix(folder: Path, function: str) -> Edges:
    """The cells of `weft trace matrix`: edge (sender, receiver) -> bytes."""
    words = [sys.executable, "-m", "transport", "trace", "matrix", str(folder), "--json", "-"]
    done = subprocess.run([*words, "--op", function], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"weft trace matrix: {done.stderr[-500:]}")
    cells = json.loads(done.stdout)["cells"]
    return {(int(c["from"]), int(c["to"])): c["value"] for c in cells if c["state"] == "measured"}


def check_matrix(name: str, folder: Path, trace: Trace) -> list[dict[str, Any]]:
    """Compares the command's matrices with the segments, whose volumes are checked themselves."""
    rows = []
    for function, edges in sorted((k, v) for k, v in trace.sent.items() if k != "?"):
        said = {edge: count for edge, count in matrix(folder, function).items() if count}
        rows.append(
            {
                "run": name,
                "function": f"weft trace matrix --op {function}",
                "edges": len(said),
                "measured_bytes": sum(said.values()),
                "expected_bytes": sum(edges.values()),
                "equal": said == {edge: n for edge, n in edges.items() if n},
            }
        )
    return rows


def profiles() -> list[dict[str, Any]]:
    rows = []
    for task in ("resnet18", "bert", "gpt2", "bert-fsdp", "pipeline"):
        with tempfile.TemporaryDirectory() as text:
            try:
                results = launch(task, 2, 2, Path(text), weft())
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                rows.append(
                    {"run": task, "function": "failed: " + str(error)[-300:], "equal": False}
                )
                continue
            trace = Trace(Path(text))
            kernels = results[0]["kernels"]
            print(task, "profiler:", kernels, "trace:", dict(trace.counts[0]))
            operations = {"operations": dict(trace.counts[0]), "dropped": trace.dropped}
            # NCCL uses one kernel for a Send and a Recv that are posted together.
            ran = Counter(kernels)
            traced = trace.counts[0].copy()
            if "SendRecv" in ran:
                traced = Counter({"SendRecv": traced["Send"] + traced["Recv"]})
            same = {"equal": ran == traced}
            rows.append({"run": task, "function": "all", "kernels": kernels} | operations | same)
    return rows


def nvlink() -> list[dict[str, Any]]:
    """With P2P on, NCCL sends nothing over the network; operations must be traced nevertheless."""
    with tempfile.TemporaryDirectory() as text:
        variables = UNICAST | {k: v for k, v in weft().items() if k not in NET_ONLY}
        launch("collectives", 2, 2, Path(text), variables | {"NCCL_ALGO": "ring"})
        trace = Trace(Path(text))
    moved = sum(sum(edges.values()) for edges in trace.sent.values())
    return [
        {
            "run": "NVLink",
            "function": "all",
            "operations": dict(trace.counts[0]),
            "measured_bytes": moved,
            "equal": trace.counts[0]["AllReduce"] >= CALLS,
        }
    ]


def main() -> None:
    gpus = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    counts = (int(sys.argv[3]),) if len(sys.argv) > 3 else (2, 4) if gpus == 2 else (gpus,)
    rows = volumes(gpus, counts) + (nvlink() + profiles() if counts == (2, 4) else [])
    for row in rows:
        print(json.dumps(row))
    import torch

    facts = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "driver": driver()}
    facts["local"] = weft()["WEFT_LOCAL"]
    facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(document("trace-checks", rows, **facts), indent=1))
    wrong = [row for row in rows if row.get("equal") is False]
    print(f"{len(rows) - len(wrong)} of {len(rows)} rows as expected")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
