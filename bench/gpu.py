"""Measures transfers of GPU memory: GPU to GPU beside host to host, and the staging copies alone.

Every message is new random data and is compared on the GPU that received it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
import numpy as np

from bench.lib import loops
from bench.lib.common import (
    Config,
    document,
    duel,
    emit,
    interruptible,
    json_option,
    median,
    rounds,
    verdict,
)
from bench.lib.gpu_nccl import SOCKET, WEFT, measure_nccl
from bench.nccl import driver
from transport import Endpoint, native
from transport.endpoint.knobs import in_force
from transport.ground.units import binary_text, bytes_of
from transport.host.probes import cuda_devices

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 128 * MIB, 1024 * MIB)
ROUND_BYTES = 2 << 30  # bytes sent per size and round, in at least two messages
IN_FLIGHT = 64
PATIENCE_S = 60.0
CROSS = ("host to host", "GPU to GPU")
LENT, PEER = "GPU to GPU, local", "peer copy"  # WEFT_LOCAL=auto; in one process
RING_BYTES_MAX = 32 * MIB  # the largest staging ring that a device worker uses
WAYS = {"to host": (True, False), "to device": (False, True), "both": (True, True)}
KERNEL_BYTES, PIECES = 1024 * MIB, (65_536, 8_900, 1_400)
CROSS_BUDGET, STAGING_BUDGET, KERNEL_BUDGET = 0.9, 0.9, 0.8
LENT_BUDGETS = {16 * MIB: 0.85, MIB: 0.5}  # from a message size on, of a peer copy
COLUMNS = ("part", "contender", "round", "size_bytes", "gbytes_per_s", "ratio", "wrong")


def messages_of(size_bytes: int) -> int:
    """Number of messages for ROUND_BYTES in total, limited to the range 2 to IN_FLIGHT."""
    return max(min(ROUND_BYTES // size_bytes, IN_FLIGHT), 2)


def gpu_of(side: int) -> int:
    """The GPU of a process: each of the two processes has its own GPU if there are two."""
    import cupy

    return side % int(cupy.cuda.runtime.getDeviceCount())


class Memory:
    """Random messages, reproducible from a seed, in host or GPU memory."""

    def __init__(self, on_gpu: bool, side: int) -> None:
        self.on_gpu = on_gpu
        if on_gpu:
            import cupy

            self.cupy = cupy
            cupy.cuda.Device(gpu_of(side)).use()

    def empty(self, size_bytes: int) -> Any:
        return (self.cupy if self.on_gpu else np).zeros(size_bytes, dtype=np.uint8)

    def content(self, size_bytes: int, seed: int) -> Any:
        words = (size_bytes + 7) // 8
        if not self.on_gpu:
            made = np.random.default_rng(seed).integers(0, 1 << 63, words, dtype=np.int64)
            return made.view(np.uint8)[:size_bytes]
        # Any GPU of the same model generates the same numbers, so the receiver knows the content.
        made = self.cupy.random.default_rng(seed).integers(0, 1 << 62, words, dtype=np.int64)
        return made.view(np.uint8)[:size_bytes]

    def wrong(self, found: Any, seed: int) -> bool:
        return not bool((found == self.content(found.size, seed)).all())

    def settle(self) -> None:
        if self.on_gpu:
            self.cupy.cuda.Device().synchronize()


def receiver(pipe: Pipe, config: Config) -> list[Config]:
    """Posts all receives of a size, tells the sender to send, times the messages, compares them."""
    memory = Memory(config["on_gpu"], 1)
    rows = []
    with Endpoint(**config["knobs"]) as endpoint, endpoint.listen() as listener:
        pipe.send(("address", listener.handle))
        with listener.accept(timeout_s=PATIENCE_S) as connection:
            for size_bytes in config["sizes"]:
                count = messages_of(size_bytes)
                places = [memory.empty(size_bytes) for _ in range(count)]
                memory.settle()
                # The first message is a warm-up: weft pins its staging memory and grows windows.
                warm = connection.irecv_into(places[0])
                connection.send(b"ready", timeout_s=PATIENCE_S)
                warm.wait(PATIENCE_S)
                requests = [connection.irecv_into(place) for place in places]
                connection.send(b"go", timeout_s=PATIENCE_S)
                begin = time.perf_counter()
                for request in requests:
                    request.wait(PATIENCE_S)
                seconds = time.perf_counter() - begin
                wrong = sum(
                    memory.wrong(place, config["seed"] + i) for i, place in enumerate(places)
                )
                rate = count * size_bytes / seconds / 1e9
                rows.append({"size_bytes": size_bytes, "gbytes_per_s": rate, "wrong": wrong})
            connection.send(b"over", timeout_s=PATIENCE_S)
    return rows


def sender(_: Pipe, config: Config) -> str:
    """Sends the messages for which the receiver is ready."""
    memory = Memory(config["on_gpu"], 0)
    with (
        Endpoint(**config["knobs"]) as endpoint,
        endpoint.connect(config["address"]) as connection,
    ):
        for size_bytes in config["sizes"]:
            contents = [
                memory.content(size_bytes, config["seed"] + i)
                for i in range(messages_of(size_bytes))
            ]
            memory.settle()
            assert connection.recv(8, timeout_s=PATIENCE_S) == b"ready"
            connection.send(contents[0], timeout_s=PATIENCE_S)
            assert connection.recv(8, timeout_s=PATIENCE_S) == b"go"
            requests = [connection.isend(content) for content in contents]
            for request in requests:
                request.wait(PATIENCE_S)
        assert connection.recv(8, timeout_s=PATIENCE_S) == b"over"
        return endpoint.summary()


def peer_copies(sizes: tuple[int, ...]) -> list[Config]:
    """Copies between the GPUs of two processes, all of a size in one stream of one process."""
    import cupy

    here, there = gpu_of(1), gpu_of(0)
    runtime = cupy.cuda.runtime
    rows = []
    with cupy.cuda.Device(here):
        if here != there:
            with contextlib.suppress(runtime.CUDARuntimeError):  # a round before did it
                runtime.deviceEnablePeerAccess(there)
        stream = cupy.cuda.Stream(non_blocking=True)
        for size_bytes in sizes:
            count = messages_of(size_bytes)
            places = [cupy.zeros(size_bytes, dtype=cupy.uint8) for _ in range(count)]
            with cupy.cuda.Device(there):
                contents = [cupy.ones(size_bytes, dtype=cupy.uint8) for _ in range(count)]
                cupy.cuda.Device().synchronize()
            cupy.cuda.Device().synchronize()
            seconds = []
            for _ in range(2):  # the first is a warm-up
                begin = time.perf_counter()
                for place, content in zip(places, contents, strict=True):
                    runtime.memcpyPeerAsync(
                        place.data.ptr, here, content.data.ptr, there, size_bytes, stream.ptr
                    )
                stream.synchronize()
                seconds.append(time.perf_counter() - begin)
            wrong = sum(not bool((place == 1).all()) for place in places)
            rate = count * size_bytes / seconds[-1] / 1e9
            rows.append({"size_bytes": size_bytes, "gbytes_per_s": rate, "wrong": wrong})
    return rows


def measure_cross(repeats: int, sizes: tuple[int, ...], nccl: bool) -> Iterator[Config]:
    """Measures two processes over lo, GPU to GPU and host to host in turn."""
    ways = (*CROSS, LENT, PEER)
    for round_, name in rounds(repeats, (*ways, WEFT, SOCKET) if nccl else ways):
        if name in (WEFT, SOCKET):
            found = measure_nccl(name, sizes, time.time_ns() % 1_000_000)
        elif name == PEER:
            found = peer_copies(sizes)
        else:
            config = {
                "on_gpu": name != CROSS[0],
                "sizes": sizes,
                "seed": 1_000_003 * (round_ + 1) + time.time_ns() % 1_000_000,
                "knobs": {"interfaces": "lo", "local": "auto" if name == LENT else "off"},
            }
            found, _ = duel(receiver, sender, config, one_core=False)
        for row in found:
            yield {"part": "cross", "contender": name, "round": round_} | row


def measure_staging(repeats: int, sizes: tuple[int, ...]) -> Iterator[Config]:
    """Measures copies through staging rings, without a network, against plain copies."""
    import cupy

    for size_bytes in sizes:
        source, target = (cupy.zeros(size_bytes, dtype=cupy.uint8) for _ in range(2))
        cupy.cuda.Device().synchronize()
        count = max(min(ROUND_BYTES // size_bytes, 64), 4)
        for round_, name in rounds(repeats, tuple(WAYS)):
            reads, writes = WAYS[name]
            addresses = (source.data.ptr if reads else 0, target.data.ptr if writes else 0)
            staged_ns, copied_ns = loops.bench_staging(
                0, *addresses, size_bytes, RING_BYTES_MAX, count
            )
            moved = size_bytes * count * (reads + writes)
            yield {
                "part": "staging",
                "contender": name,
                "round": round_,
                "size_bytes": size_bytes,
                "gbytes_per_s": moved / staged_ns,
                "copied_gbytes_per_s": moved / copied_ns,
                "ratio": copied_ns / staged_ns,
                "wrong": 0,
            }


def measure_kernels(repeats: int) -> Iterator[Config]:
    """Measures each GPU kernel of weft alone, against a copy of as many bytes on the GPU."""
    import cupy

    source, target = (cupy.zeros(KERNEL_BYTES, dtype=cupy.uint8) for _ in range(2))
    cupy.cuda.Device().synchronize()
    plans = {
        f"{work} of {size} B": (work, size) for size in PIECES for work in ("gather", "scatter")
    }
    plans["reduce"] = ("reduce", 0)
    for round_, name in rounds(repeats, tuple(plans)):
        work, piece_bytes = plans[name]
        kernel_ns, copy_ns, moved = loops.bench_kernel(
            work, 0, source.data.ptr, target.data.ptr, KERNEL_BYTES, piece_bytes, 20
        )
        # A copy reads and writes each byte once; a reduction reads twice as much.
        floor_ns = copy_ns * (1.5 if work == "reduce" else 1)
        yield {
            "part": "kernels",
            "contender": name,
            "round": round_,
            "size_bytes": moved,
            "gbytes_per_s": 20 * moved / kernel_ns,
            "ratio": floor_ns / kernel_ns,
            "wrong": 0,
        }


def notes_of(rows: list[Config]) -> list[str]:
    """Notes that compare the medians with the required speeds."""
    notes = []
    for size_bytes in dict.fromkeys(row["size_bytes"] for row in rows):
        mine = [row for row in rows if row["size_bytes"] == size_bytes]
        by = {
            name: median([row for row in mine if row["contender"] == name], "gbytes_per_s")
            for name in dict.fromkeys(row["contender"] for row in mine if row["part"] == "cross")
        }
        size = binary_text(size_bytes)
        if set(CROSS) <= set(by):
            ratio = by[CROSS[1]] / by[CROSS[0]]
            text = f"{size}: GPU to GPU at {ratio:.2f} of the speed of host to host"
            notes.append(f"{text} (at least {CROSS_BUDGET})")
            peers = [name for name in (WEFT, SOCKET) if name in by]
            notes[-1] += "".join(f", {by[CROSS[1]] / by[name]:.2f} of {name}" for name in peers)
        if {LENT, PEER, CROSS[1]} <= set(by):
            text = f"{size}: lent, {by[LENT] / by[PEER]:.2f} of a peer copy's speed"
            budget = max((b for least, b in LENT_BUDGETS.items() if size_bytes >= least), default=0)
            text += f" (at least {budget})" if budget else ""
            notes.append(f"{text}, {by[LENT] / by[CROSS[1]]:.1f} of UDP's")
        for name in WAYS:
            staged = [row for row in mine if (row["part"], row["contender"]) == ("staging", name)]
            if staged:
                ratio = median(staged, "ratio")
                text = f"{size}: staging {name} {ratio:.2f} of a pinned copy's speed"
                notes.append(f"{text} (at least {STAGING_BUDGET})")
    for name in dict.fromkeys(row["contender"] for row in rows if row["part"] == "kernels"):
        ratio = median([row for row in rows if row["contender"] == name], "ratio")
        text = f"{name}: at {ratio:.2f} of the speed of a copy on the GPU"
        notes.append(f"{text} (at least {KERNEL_BUDGET} from 64 KiB)")
    return notes


def devices() -> tuple[int, str]:
    """The number of GPUs, and their model; ClickException with the remedy if there is none."""
    count, driver = cuda_devices()
    if count == 0:
        raise click.ClickException(f"needs an NVIDIA GPU: {driver}")
    try:
        import cupy
    except ImportError:
        raise click.ClickException("needs CuPy: pip install cupy-cuda13x") from None
    try:
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise click.ClickException(f"CuPy fails with driver CUDA {driver}: {error}") from None
    return count, f"{name} x {count}, CUDA {driver} driver"


def libraries() -> dict[str, str]:
    """The versions of CuPy, PyTorch and NCCL."""
    import cupy

    found = {"cupy": str(cupy.__version__)}
    with contextlib.suppress(ImportError):
        import torch

        found["torch"] = str(torch.__version__)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


@click.command("gpu")
@click.option("--repeats", default=5, show_default=True, help="Interleaved rounds.")
@click.option(
    "--size", multiple=True, type=int, default=SIZES, show_default=True, help="Message bytes."
)
@click.option(
    "--part",
    multiple=True,
    type=click.Choice(["cross", "staging", "kernels"]),
    default=("cross", "staging", "kernels"),
    show_default=True,
    help="The part to measure; repeat for several.",
)
@click.option("--nccl/--no-nccl", default=True, help="With two GPUs: also NCCL over weft, Socket.")
@json_option
def command(
    repeats: int, size: tuple[int, ...], part: tuple[str, ...], nccl: bool, json_path: str | None
) -> None:
    """Measures GPU to GPU over lo against host memory and NCCL; staging, kernels against copies."""
    count, named = devices()
    rows: list[Config] = []
    with interruptible() as cut:
        if "staging" in part:
            rows.extend(measure_staging(repeats, size))
        if "kernels" in part and native.why_no_kernels() == "":
            rows.extend(measure_kernels(repeats))
        if "cross" in part:
            rows.extend(measure_cross(repeats, size, nccl=nccl and count > 1))
    pool = bytes_of(in_force()["gpu_pool_bytes"])
    found = document(
        "gpu", rows, gpus=named, gpu_pool_bytes=pool, driver=driver(), libraries=libraries()
    )
    missing = [f"no kernels: {native.why_no_kernels()}"] if native.why_no_kernels() else []
    emit(found, json_path, COLUMNS, [named, *notes_of(rows), *missing], cut)
    verdict(all(row["wrong"] == 0 for row in rows))


if __name__ == "__main__":
    command()
