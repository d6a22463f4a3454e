"""Decides what a policy call costs: swift's on_ack compiled from Python against the same in C.

Never touches the engine. Equal results are asserted before anything is timed; an empty call is
subtracted; runs are interleaved, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import ctypes
import platform
import random
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.common import document, emit, json_option
from congestion.registry import find
from transport.compiler import compile_policy
from transport.compiler.library import load

REFERENCE = Path(__file__).parent / "reference"
RING = 1_024  # events of 160 bytes: they fit the second-level cache
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
    """Acknowledgments of a flow whose queue fills and drains, every 2 us."""
    draw = random.Random(seed)
    events = find("window", "swift").family.event.zeros(RING)
    for index in range(RING):
        queue_ns = draw.randint(0, 60_000) if index // 128 % 2 else draw.randint(60_000, 400_000)
        one = events[index]
        one["now_ns"] = 1_000_000_000 + index * 2_000
        one["segment_bytes"] = SEGMENT_BYTES
        one["rtt_min_ns"] = 20_000
        one["rtt_ns"] = 20_000 + queue_ns
        one["srtt_ns"] = 100_000
        one["acked_segments"] = draw.randint(1, 8)
        one["acked_bytes"] = one["acked_segments"] * SEGMENT_BYTES
        one["ecn_segments"] = int(draw.random() < 0.05)
        one["app_limited"] = int(draw.random() < 0.05)
        one["window_bytes_max"] = 1 << 24
    return events


class Contender:
    """One implementation: its hooks and fresh records for each run."""

    def __init__(self, name: str, start: Any, ack: Any, driver: ctypes.CDLL) -> None:
        self.name, self.start, self.ack, self.driver = name, start, ack, driver
        self.policy = find("window", "swift")
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


def contenders(folder: Path) -> tuple[Contender, Contender, list[Contender]]:
    """The empty call, ours, and C by every compiler there is."""
    compilers = [name for name in ("gcc", "clang") if shutil.which(name)]
    if not compilers:
        raise click.ClickException("neither gcc nor clang is installed")
    driver = build(compilers[0], "driver.c", folder / "driver.so")
    library = load(compile_policy(find("window", "swift"), folder / "swift.so"))
    hooks = library.descriptor.hooks
    ours = Contender("weft", hooks[0], hooks[1], driver)
    empty = Contender("empty call", hooks[0], address(driver.empty_hook), driver)
    in_c = []
    for compiler in compilers:
        built = build(compiler, "swift.c", folder / f"reference_{compiler}.so")
        start, ack = address(built.reference_start), address(built.reference_ack)
        in_c.append(Contender(f"C, {compiler}", start, ack, driver))
    return empty, ours, in_c


def measure(calls: int, rounds: int) -> dict[str, Any]:
    """The medians, and the ratio to the best C."""
    with tempfile.TemporaryDirectory() as folder:
        empty, ours, in_c = contenders(Path(folder))
        want = ours.digest(calls)
        for reference in in_c:
            assert reference.digest(calls) == want, f"{reference.name} computes something else"
        everyone = [empty, *in_c, ours]
        for _ in range(rounds):
            for contender in everyone:
                contender.measure(calls)
        net_ns = {one.name: one.median_ns - empty.median_ns for one in (*in_c, ours)}
    best_ns = min(net_ns[reference.name] for reference in in_c)
    rows = [{"contender": name, "ns_per_call": round(ns, 3)} for name, ns in net_ns.items()]
    return document(
        "policy",
        rows,
        calls=calls,
        rounds=rounds,
        digest=f"{int(want[0]):016x}",
        empty_call_ns=round(empty.median_ns, 3),
        ratio_to_best_c=round(net_ns["weft"] / best_ns, 4),
        budget=BUDGET,
    )


@click.command("policy")
@click.option("--calls", default=1_000_000, show_default=True, help="Events per run.")
@click.option("--rounds", default=9, show_default=True, help="Interleaved runs of each.")
@json_option
def command(calls: int, rounds: int, json_path: str | None) -> None:
    """What a policy call costs against the same in C."""
    found = measure(calls, rounds)
    note = (
        f"ratio to the best C {found['ratio_to_best_c']:.3f} (budget {BUDGET}), empty call "
        f"{found['empty_call_ns']:.2f} ns subtracted, results equal: {found['digest']}"
    )
    emit(found, json_path, ("contender", "ns_per_call"), [note])


if __name__ == "__main__":
    command()
