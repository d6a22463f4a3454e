"""Tests messages that two processes of one host lend each other in GPU memory, on real GPUs.

Run by hand on a host with a GPU: python -m pytest tests/device/lent_checks.py. With two GPUs, each
process uses one; with one GPU they share it.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import PATIENCE_S, child, line, running
from transport import Connection, Endpoint, Listener
from transport.errors import WeftError

cupy = pytest.importorskip("cupy", reason="needs CuPy and a GPU")
GPUS = cupy.cuda.runtime.getDeviceCount()
THEIRS = str(min(1, GPUS - 1))
MIB = 1 << 20


class Ends:
    """This process, which sends from GPU 0, and a child that receives."""

    def __init__(self, listener: Listener, log: Path, gpu: str, **variables: str) -> None:
        self.log = log
        self.child = child(
            listener.handle.hex(),
            gpu,
            module="tests.device.lent_peer",
            launcher=("sh", "-c", f'exec "$@" 2>{log}', "sh"),
            WEFT_LOCAL="auto",
            WEFT_LOG_LEVEL="info",
            **variables,
        )
        self.connection: Connection = listener.accept(timeout_s=PATIENCE_S)
        assert line(self.child) == "connected"

    def ask(self, kind: str, size_bytes: int, seed: int) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{kind} {size_bytes} {seed}\n")
        self.child.stdin.flush()
        assert line(self.child) == "posted"

    def send(self, kind: str, size_bytes: int, seed: int) -> str:
        self.ask(kind, size_bytes, seed)
        self.connection.send(random(size_bytes, seed), timeout_s=PATIENCE_S)
        return line(self.child)

    def meet(self) -> None:
        """Staged messages until the child has said how it reads this GPU."""
        until = time.monotonic() + PATIENCE_S
        seed = 0
        while "the peer's GPU" not in self.log.read_text():
            assert time.monotonic() < until
            seed += 1
            assert self.send("gpu", 20_000, seed) == "right"


def random(size_bytes: int, seed: int) -> Any:
    return cupy.random.default_rng(seed).integers(0, 256, size_bytes, dtype=cupy.uint8)


@contextlib.contextmanager
def lenders(folder: Path, gpu: str = THEIRS, **variables: str) -> Iterator[Ends]:
    with (
        Endpoint(interfaces="lo", local="auto") as endpoint,
        endpoint.listen() as listener,
    ):
        ends = Ends(listener, folder / "log", gpu, **variables)
        with running(ends.child), ends.connection:
            ends.meet()
            yield ends


@pytest.fixture(name="ends")
def ends_(tmp_path: Path) -> Iterator[Ends]:
    with lenders(tmp_path) as ends:
        assert "copies messages out of" in ends.log.read_text()
        yield ends


def free_bytes() -> int:
    cupy.get_default_memory_pool().free_all_blocks()
    return int(cupy.cuda.runtime.memGetInfo()[0])


@pytest.mark.parametrize("kind", ["gpu", "host"])
def test_sizes(ends: Ends, kind: str) -> None:
    for size_bytes in (1, 16_383, 16_384, 100_001, MIB, 3 * MIB + 1, 64 * MIB, (1 << 30) + 1):
        assert ends.send(kind, size_bytes, size_bytes % 1_000) == "right"


def test_many_at_once(ends: Ends) -> None:
    arrays = [random(50_000 * (i + 1), i) for i in range(20)]
    for i, array in enumerate(arrays):
        ends.ask("gpu" if i % 3 else "host", array.size, i)
        ends.connection.send(array, timeout_s=PATIENCE_S)
        assert line(ends.child) == "right"


def test_memory_of_torch(ends: Ends) -> None:
    torch = pytest.importorskip("torch")
    for i in range(20):
        ends.ask("gpu", MIB, i)
        tensor = torch.from_dlpack(random(MIB, i)).clone()
        ends.connection.send(tensor, timeout_s=PATIENCE_S)
        assert line(ends.child) == "right"


def test_memory_of_a_pool_is_staged(ends: Ends) -> None:
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        for i in range(5):
            assert ends.send("gpu", MIB, i) == "right"


def test_freed_memory_comes_back(ends: Ends) -> None:
    cupy.cuda.set_allocator(None)
    try:
        before = free_bytes()
        for i in range(8):  # a new allocation each time, often at the same address
            assert ends.send("gpu", 256 * MIB, i) == "right"
        assert ends.child.stdin is not None
        ends.child.stdin.close()  # ends the child, and its mappings
        ends.child.stdin = None
        ends.child.wait(PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while before - free_bytes() > 64 * MIB:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def test_streams_come_first(ends: Ends) -> None:
    content = random(64 * MIB, 5)
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(10):
        array = cupy.zeros(content.size, cupy.uint8)
        cupy.cuda.Device().synchronize()
        ends.ask("gpu", content.size, 5)
        with stream:
            for _ in range(20):
                array += 1
            array[:] = content
        ends.connection.send(array, timeout_s=PATIENCE_S, stream=stream)
        assert line(ends.child) == "right"


def test_while_a_stream_waits(ends: Ends) -> None:
    """A stream of this process waits for the send; the child reads the memory meanwhile."""
    array = random(8 * MIB, 3)
    stream = cupy.cuda.Stream(non_blocking=True)
    after = cupy.zeros(1, cupy.uint8)
    request = ends.connection.isend(array)
    request.wait_on(stream)
    with stream:
        after += 1
    ends.ask("gpu", array.size, 3)
    assert line(ends.child) == "right"
    stream.synchronize()
    assert int(after[0]) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_peer_that_dies(ends: Ends, number: int, tmp_path: Path) -> None:
    ends.ask("gpu", 64 * MIB, 1)
    request = ends.connection.isend(random(64 * MIB, 1))
    ends.child.send_signal(number)
    begun = [request, *(ends.connection.isend(random(MIB, i)) for i in range(5))]

    def hear() -> None:
        for each in begun:
            each.wait(PATIENCE_S)
        ends.connection.send(b"x", timeout_s=PATIENCE_S)

    with pytest.raises(WeftError):
        hear()
    assert int(random(1_000, 1).sum()) > 0  # the GPU goes on
    again = tmp_path / "again"
    again.mkdir()
    with lenders(again) as next_ends:
        assert next_ends.send("gpu", MIB, 9) == "right"


def test_a_sender_that_closes(ends: Ends) -> None:
    ends.ask("gpu", 512 * MIB, 1)
    request = ends.connection.isend(random(512 * MIB, 1))
    ends.connection.close()
    with contextlib.suppress(WeftError):
        request.wait(PATIENCE_S)
    said = line(ends.child)
    assert said == "right" or "Error" in said


def test_a_child_that_sees_no_other_gpu(tmp_path: Path) -> None:
    """The driver then maps nothing of the other GPU, or does: both are right."""
    uuids = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    with lenders(tmp_path, "0", CUDA_VISIBLE_DEVICES=uuids[-1]) as ends:
        for i in range(3):
            assert ends.send("gpu", 5 * MIB, i) == "right"
            assert ends.send("host", 5 * MIB, i) == "right"
        print(ends.log.read_text())
