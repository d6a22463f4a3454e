"""Measures the cost of a policy call: a window policy's on_ack compiled from Python against C.

Results are checked for equality before anything is timed. The time of an empty call is subtracted.
Runs are interleaved, so that other load affects all contenders.
"""

from __future__ import annotations

import ctypes
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.lib.common import Cut, document, emit, interruptible, json_option
from congestion.api import FAMILIES, Policy
from congestion.registry import find
from transport.compiler import compile_policy
from transport.compiler.library import load

REFERENCE = Path(__file__).parent / "reference"
POLICIES = ("swift", "nscc")  # policies that also have a C version, reference/<name>.c
RING = 1_024  # number of events of 168 bytes each; together they fit into the L2 cache
LAP_NS = RING * 2_000
BUDGET = 1.15
SEGMENT_BYTES = 9_000


def flags() -> list[str]:
    march = [] if platform.machine() == "aarch64" else ["-march=x86-64-v3"]
    return ["-O3", *march, "-ffp-contract=off", "-shared", "-fPIC"]


def build(compiler: str, source: str, out: Path) -> ctypes.CDLL:
    command = [compiler, *flags(), str(REFERENCE / source), "-o", str(out), "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


def stream(seed: int) -> np.ndarray[Any, Any]:
    """An acknowledgment every 2 us, of a flow whose queue fills and drains."""
    draw = random.Random(seed)
    events = FAMILIES["window"].event.zeros(RING)
    for index in range(RING):
        full = index // 128 % 2 == 0
        queue_ns = draw.randint(60_000, 400_000) if full else draw.randint(0, 60_000)
        one = events[index]
        one["now_ns"] = 1_000_000_000 + index * 2_000
        one["segment_bytes"] = SEGMENT_BYTES
        one["rtt_min_ns"] = 20_000
        one["rtt_ns"] = 20_000 + queue_ns
        one["srtt_ns"] = 100_000
        one["acked_segments"] = draw.randint(1, 8)
        one["acked_bytes"] = one["acked_segments"] * SEGMENT_BYTES
        one["ack_delay_ns"] = draw.randint(0, 30_000) if index // 512 else draw.randint(0, 300_000)
        one["inflight_bytes"] = 1 << 20
        one["ecn_segments"] = int(draw.random() < (0.3 if full else 0.05))
        one["app_limited"] = int(draw.random() < 0.05)
        one["window_bytes_max"] = 1 << 24
    return events


class Contender:
    """One implementation of a policy: its hooks, and fresh records for each run."""

    def __init__(
        self, name: str, policy: Policy, start: Any, ack: Any, driver: ctypes.CDLL
    ) -> None:
        self.name, self.policy, self.start, self.ack = name, policy, start, ack
        self.driver = driver
        self.params = self.policy.params.filled()
        self.times_ns: list[float] = []

    def run(self, function: Any, calls: int) -> tuple[float, bytes]:
        flow, events = self.policy.flow.zeros(), stream(1)
        result = self.policy.family.result.zeros()
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (flow, self.params, events)]
        answer = ctypes.c_void_p(result.ctypes.data)
        start = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_void_p] * 6))(self.start)
        start(pointers[0], None, None, pointers[1], pointers[2], answer)
        numbers = [ctypes.c_int64(value) for value in (RING, LAP_NS, calls)]
        value = function(ctypes.c_void_p(self.ack), *pointers, *numbers, answer)
        return value, flow.tobytes()

    def digest(self, calls: int) -> tuple[float, bytes]:
        self.driver.digest_calls.restype = ctypes.c_uint64
        return self.run(self.driver.digest_calls, calls)

    def measure(self, calls: int) -> None:
        self.driver.time_calls.restype = ctypes.c_double
        elapsed_ns, _ = self.run(self.driver.time_calls, calls)
        assert elapsed_ns > 0, f"{self.name}: a call failed"
        self.times_ns.append(elapsed_ns / calls)

    @property
    def median_ns(self) -> float:
        return statistics.median(self.times_ns)


def address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def contenders(name: str, folder: Path) -> tuple[Contender, Contender, list[Contender]]:
    """The contenders: an empty call, the compiled policy, and C built by each compiler."""
    compilers = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]
    if not compilers:
        raise click.ClickException("neither gcc nor clang is installed")
    policy = find("window", name)
    driver = build(compilers[0], "driver.c", folder / "driver.so")
    library = load(compile_policy(policy, folder / f"{name}.so"))
    hooks = library.descriptor.hooks
    ours = Contender("weft", policy, hooks[0], hooks[1], driver)
    empty = Contender("empty call", policy, hooks[0], address(driver.empty_hook), driver)
    in_c = []
    for compiler in compilers:
        built = build(compiler, f"{name}.c", folder / f"{name}_{compiler}.so")
        start, ack = address(built.reference_start), address(built.reference_ack)
        in_c.append(Contender(f"C, {compiler}", policy, start, ack, driver))
    return empty, ours, in_c


def compare(name: str, calls: int, rounds: int) -> list[dict[str, Any]]:
    """A row per contender of a policy: its median time, and the ratio to the fastest C version."""
    with tempfile.TemporaryDirectory() as folder:
        empty, ours, in_c = contenders(name, Path(folder))
        want = ours.digest(calls)
        for reference in in_c:
            assert reference.digest(calls) == want, f"{reference.name} has other results"
        everyone = [empty, *in_c, ours]
        for _ in range(rounds):
            for contender in everyone:
                contender.measure(calls)
        net_ns = {one.name: one.median_ns - empty.median_ns for one in (*in_c, ours)}
    best_ns = min(net_ns[reference.name] for reference in in_c)
    return [
        {
            "policy": name,
            "contender": contender,
            "ns_per_call": round(ns, 3),
            "ratio_to_best_c": round(ns / best_ns, 4),
            "empty_call_ns": round(empty.median_ns, 3),
            "digest": f"{int(want[0]):016x}",
        }
        for contender, ns in net_ns.items()
    ]


def measure(calls: int, rounds: int, names: Sequence[str] = POLICIES) -> tuple[dict[str, Any], Cut]:
    """Measures the policies one after the other; Ctrl-C keeps those that are finished."""
    rows: list[dict[str, Any]] = []
    with interruptible() as cut:
        for name in names:
            rows += compare(name, calls, rounds)
    ratios = {row["policy"]: row["ratio_to_best_c"] for row in rows if row["contender"] == "weft"}
    found = document(
        "policy",
        rows,
        calls=calls,
        rounds=rounds,
        digest="-".join(row["digest"] for row in rows if row["contender"] == "weft"),
        ratios=ratios,
        budget=BUDGET,
    )
    return found, cut


@click.command("policy")
@click.option("--calls", default=1_000_000, show_default=True, help="Events per run.")
@click.option("--rounds", default=9, show_default=True, help="Interleaved runs of each.")
@click.option(
    "--policy",
    "names",
    multiple=True,
    type=click.Choice(POLICIES),
    help="The window policy to time; may be given several times. All by default.",
)
@json_option
def command(calls: int, rounds: int, names: tuple[str, ...], json_path: str | None) -> None:
    """Measures the time of a policy call, against the same policy in C."""
    found, cut = measure(calls, rounds, names or POLICIES)
    notes = [
        f"{name}: ratio to the best C {ratio:.3f} (budget {BUDGET}), empty call subtracted, "
        f"results equal"
        for name, ratio in found["ratios"].items()
    ]
    emit(found, json_path, ("policy", "contender", "ns_per_call", "ratio_to_best_c"), notes, cut)


if __name__ == "__main__":
    command()
