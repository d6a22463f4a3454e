"""Tests transfers of arrays on real GPUs: CuPy, PyTorch, Numba, JAX; streams; wrong arguments.

Run by hand on a host with a GPU: python -m pytest tests/device/gpu_checks.py. Tests that need two
GPUs are skipped on a host with one.
"""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.api.support import PATIENCE_S, ROOT, pair
from transport import Connection
from transport.errors import InvalidArgumentError, TimedOutError, WeftError

cupy = pytest.importorskip("cupy", reason="needs CuPy and a GPU")
cupyx = pytest.importorskip("cupyx")

Ends = tuple[Connection, Connection]
GPUS = cupy.cuda.runtime.getDeviceCount()
two_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
SLOW = cupy.RawKernel(
    """extern "C" __global__ void slow(unsigned char* at, long long n, long long ns, int add) {
  long long begin = clock64();
  while (clock64() - begin < ns) { }
  long long all = blockDim.x * (long long)gridDim.x;
  long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  for (long long i = first; i < n; i += all) at[i] += add;
}""",
    "slow",
)


@pytest.fixture(name="ends")
def ends_() -> Iterator[Ends]:
    with pair(gpu_pool_bytes=8 << 20) as ends:
        yield ends


@pytest.fixture(name="roomy")
def roomy_() -> Iterator[Ends]:
    """Gives weft enough pinned memory for all messages of a test, so that none has to wait."""
    with pair(gpu_pool_bytes=128 << 20) as ends:
        yield ends


def random(size_bytes: int, seed: int) -> Any:
    """Makes an array of random bytes on the current GPU."""
    return cupy.random.default_rng(seed).integers(0, 256, size_bytes, dtype=cupy.uint8)


def move(here: Connection, there: Connection, sent: Any, received: Any) -> int:
    handle = there.irecv_into(received)
    here.send(sent, timeout_s=PATIENCE_S)
    return handle.wait(PATIENCE_S)


@pytest.mark.parametrize("size_bytes", [1, 15, 4_097, 1_000_003, 64 << 20, (1 << 30) + 1])
def test_cupy__crosses(ends: Ends, size_bytes: int) -> None:
    sent, received = random(size_bytes, size_bytes), cupy.zeros(size_bytes + 33, cupy.uint8)
    assert move(*ends, sent, received) == size_bytes
    assert bool((received[:size_bytes] == sent).all())
    assert not bool(received[size_bytes:].any())


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int64", "bool", "complex64"])
def test_torch__crosses(ends: Ends, kind: str) -> None:
    torch = pytest.importorskip("torch")
    kinds = getattr(torch, kind)
    bits = torch.randint(0, 2, (257, 3, 1_001), device="cuda")
    sent, received = bits.to(kinds), torch.zeros((257, 3, 1_001), dtype=kinds, device="cuda")
    move(*ends, sent, received)
    assert torch.equal(sent, received)
    # Tensors in host memory, which lack the buffer protocol, can be sent, too.
    host, back = sent.cpu(), torch.zeros_like(sent, device="cpu")
    move(*ends, host, back)
    assert torch.equal(host, back)


def test_numba__crosses(ends: Ends) -> None:
    cuda = pytest.importorskip("numba.cuda")
    content = np.random.default_rng(1).random(100_001)
    sent, received = cuda.to_device(content), cuda.device_array_like(content)
    move(*ends, sent, received)
    assert (received.copy_to_host() == content).all()


def test_jax__is_sent(ends: Ends) -> None:
    jax = pytest.importorskip("jax")
    sent = jax.random.normal(jax.random.PRNGKey(3), (100_003,))
    received = cupy.zeros(100_003, cupy.float32)
    move(*ends, sent, received)
    assert (np.asarray(sent) == received.get()).all()


def test_cupy__thousands_of_odd_tensors(ends: Ends) -> None:
    here, there = ends
    whole = random(64 << 20, 5)
    target = cupy.zeros(64 << 20, cupy.uint8)
    sizes = np.random.default_rng(2).integers(1, 12_000, 4_096)
    gaps = np.random.default_rng(3).integers(0, 37, 4_096)
    begins = np.cumsum(sizes + gaps) - sizes
    sent = [whole[b : b + n] for b, n in zip(begins, sizes, strict=True)]
    received = [target[b : b + n] for b, n in zip(begins, sizes, strict=True)]
    # First all arrays as one message, then each array as its own message.
    assert move(here, there, sent, received) == int(sizes.sum())
    expected = cupy.zeros_like(target)
    for b, n in zip(begins, sizes, strict=True):
        expected[b : b + n] = whole[b : b + n]
    assert bool((target == expected).all())
    target[:] = 0
    handles = [there.irecv_into(one) for one in received]
    handles += [here.isend(one) for one in sent]
    for handle in handles:
        handle.wait(PATIENCE_S)
    assert bool((target == expected).all())


@two_gpus
def test_cupy__two_streams_on_two_gpus_at_once(ends: Ends) -> None:
    here, there = ends
    streams, sent, received = [], [], []
    for device in range(2):
        with cupy.cuda.Device(device):
            streams.append(cupy.cuda.Stream(non_blocking=True))
            with streams[-1]:
                sent.append([random(5_000_000 + i, 100 * device + i) for i in range(10)])
                received.append([cupy.zeros(5_000_100, cupy.uint8) for _ in range(10)])
            streams[-1].synchronize()
    handles = []
    for i in range(10):
        handles.append(there.irecv_into(received[1][i], stream=streams[1]))
        handles.append(here.isend(sent[0][i], stream=streams[0]))
        handles.append(here.irecv_into(received[0][i], stream=streams[0]))
        handles.append(there.isend(sent[1][i], stream=streams[1]))
    for handle in handles:
        handle.wait(PATIENCE_S)
    for device in range(2):
        for source, target in zip(sent[1 - device], received[device], strict=True):
            assert (target.get()[: source.size] == source.get()).all()


def test_streams__what_came_before_is_sent_and_what_comes_after_sees_it(ends: Ends) -> None:
    here, there = ends
    for _ in range(20):
        producer, consumer = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        sent, received = cupy.zeros(1_000_000, cupy.uint8), cupy.zeros(1_000_000, cupy.uint8)
        cupy.cuda.Device().synchronize()
        with producer:
            SLOW((64,), (256,), (sent, np.int64(sent.size), np.int64(20_000_000), np.int32(7)))
        handle = there.irecv_into(received, stream=consumer)
        handle.wait_on(consumer)
        # Post the send before the kernel, because compute-sanitizer waits for each launch.
        here.isend(sent, stream=producer)
        with consumer:
            SLOW((64,), (256,), (received, np.int64(received.size), np.int64(0), np.int32(1)))
        consumer.synchronize()
        assert bool((received == 8).all())
        assert handle.wait(PATIENCE_S) == sent.size


def test_streams__messages_that_wait_for_each_other(ends: Ends) -> None:
    here, there = ends
    stream = cupy.cuda.Stream(non_blocking=True)
    sent = [random(400_000, seed) for seed in range(12)]
    received = [cupy.zeros(400_000, cupy.uint8) for _ in sent]
    cupy.cuda.Device().synchronize()
    handles = []
    for place in received:
        handles.append(there.irecv_into(place, stream=stream))
        handles[-1].wait_on(stream)
    for one in sent:
        here.isend(one)
    stream.synchronize()
    for handle, source, place in zip(handles, sent, received, strict=True):
        assert handle.wait(PATIENCE_S) == source.size
        assert bool((place == source).all())


def test_streams__lists_come_while_many_streams_wait(roomy: Ends) -> None:
    here, there = roomy
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(100)]
    sent = [random(3_001, seed) for seed in range(50)]
    received = [[cupy.zeros(3_001, cupy.uint8) for _ in sent] for _ in streams]
    cupy.cuda.Device().synchronize()
    handles = [there.irecv_into(places, stream=0) for places in received]
    for handle, stream in zip(handles, streams, strict=True):
        handle.wait_on(stream)
    for _ in streams:
        here.isend(sent)
    for handle, places in zip(handles, received, strict=True):
        handle.wait(PATIENCE_S)
        assert all(bool((place == one).all()) for place, one in zip(places, sent, strict=True))


def test_streams__a_graph_is_captured_meanwhile(ends: Ends) -> None:
    torch = pytest.importorskip("torch")
    here, there = ends
    sent, received = random(50_000_000, 1), cupy.zeros(50_000_000, cupy.uint8)
    handle = there.irecv_into(received)
    sending = here.isend(sent)
    graph, numbers = torch.cuda.CUDAGraph(), torch.zeros(1_000, device="cuda")
    with torch.cuda.graph(graph):
        numbers += 1
    graph.replay()
    sending.wait(PATIENCE_S)
    handle.wait(PATIENCE_S)
    assert bool((received == sent).all())
    assert float(numbers[0]) == 1.0


def test_numba__what_the_default_stream_does_comes_first(ends: Ends) -> None:
    cuda = pytest.importorskip("numba.cuda")
    numbers = cuda.to_device(np.zeros(1_000_000, np.uint8))
    received = cupy.zeros(1_000_000, cupy.uint8)
    with cupy.cuda.Stream.null:
        sent = cupy.asarray(numbers)
        SLOW((64,), (256,), (sent, np.int64(sent.size), np.int64(20_000_000), np.int32(3)))
    move(*ends, numbers, received)
    assert bool((received == 3).all())


@two_gpus
def test_torch__of_a_gpu_that_is_not_the_current_one(ends: Ends) -> None:
    torch = pytest.importorskip("torch")
    here, there = ends
    sent = torch.arange(10_000, device="cuda:1")
    received = torch.zeros_like(sent)
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    handle = there.irecv_into(received)
    here.send(sent, timeout_s=PATIENCE_S)
    handle.wait(PATIENCE_S)
    assert torch.cuda.current_device() == 0
    assert torch.equal(sent, received)
    empty = there.irecv_into(received[:0])
    here.send(sent[:0], timeout_s=PATIENCE_S)
    assert empty.wait(PATIENCE_S) == 0
    with torch.cuda.device(0):
        handle = there.irecv_into(received, stream=torch.cuda.default_stream(1))
        here.send(sent, timeout_s=PATIENCE_S, stream=torch.cuda.default_stream(1))
        handle.wait(PATIENCE_S)


def test_streams__an_array_of_the_stream_in_force_needs_no_word(ends: Ends) -> None:
    here, there = ends
    received = cupy.zeros(1_000_000, cupy.uint8)
    with cupy.cuda.Stream(non_blocking=True):
        sent = cupy.zeros(1_000_000, cupy.uint8)
        SLOW((64,), (256,), (sent, np.int64(sent.size), np.int64(20_000_000), np.int32(9)))
        handle = there.irecv_into(received)
        here.send(sent, timeout_s=PATIENCE_S)
    handle.wait(PATIENCE_S)
    assert bool((received == 9).all())


@pytest.mark.parametrize("busy", ["fresh", "kernel", "to_host", "to_device"])
def test_streams__many_wait_while_messages_come(roomy: Ends, busy: str) -> None:
    """Even more waiting streams than the GPU has queues must not block weft's copies."""
    here, there = roomy
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(100)]
    sent = random(300_000, 1)
    pinned = cupyx.empty_pinned(4_096, np.uint8)
    elsewhere = cupy.zeros(4_096, cupy.uint8)

    def use(stream: Any) -> None:
        with stream:
            if busy == "kernel":
                elsewhere.fill(1)
            elif busy == "to_host":
                elsewhere.get(out=pinned, blocking=False)
            elif busy == "to_device":
                elsewhere.set(pinned)

    for stream in streams:
        use(stream)
    received = [cupy.zeros(300_000, cupy.uint8) for _ in streams]
    cupy.cuda.Device().synchronize()
    handles = [there.irecv_into(place, stream=0) for place in received]
    for handle, stream in zip(handles, streams, strict=True):
        handle.wait_on(stream)
        use(stream)
    for _ in streams:
        here.isend(sent)
    for handle in handles:
        handle.wait(PATIENCE_S)
    for stream, place in zip(streams, received, strict=True):
        stream.synchronize()
        assert bool((place == sent).all())


def other_context_stream() -> int:
    """Makes a stream of a CUDA context that is not the device's primary context."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    if hasattr(driver, "cuCtxCreate_v4"):
        status = driver.cuCtxCreate_v4(ctypes.byref(context), None, 0, 0)
    else:
        status = driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    assert status == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
    assert stream.value is not None
    return stream.value


def mistakes() -> Iterator[tuple[Any, Any, str]]:
    good = cupy.zeros(100, cupy.uint8)
    managed = cupy.ndarray(100, cupy.uint8, memptr=cupy.cuda.malloc_managed(100))
    yield managed, None, "buf: managed memory"
    yield cupy.zeros((8, 8))[:, ::2], None, "buf: .*not contiguous"
    yield good, other_context_stream(), "stream: belongs to another device or context"
    freed = cupy.cuda.runtime.malloc(1 << 22)
    memory = cupy.cuda.UnownedMemory(freed, 1 << 22, None)
    stale = cupy.ndarray(1 << 22, cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    cupy.cuda.runtime.free(freed)
    yield stale, None, "buf: no device memory at"
    if GPUS > 1:
        with cupy.cuda.Device(1):
            elsewhere, stream = cupy.zeros(100, cupy.uint8), cupy.cuda.Stream()
        yield [good, elsewhere], None, "buf: .*on device 0 and on device 1"
        yield good, stream, "stream: belongs to another device or context"


def test_mistakes__are_one_error_each_and_nothing_is_lost(ends: Ends) -> None:
    here, there = ends
    for buf, stream, words in mistakes():
        with pytest.raises(InvalidArgumentError, match=words):
            there.irecv_into(buf, stream=stream)
    sent, received = random(1_000, 1), cupy.zeros(1_000, cupy.uint8)
    move(here, there, sent, received)
    assert bool((sent == received).all())


def test_memory__dropped_while_in_use_stays(ends: Ends) -> None:
    here, there = ends
    expected = random(30_000_000, 4).get()
    handle = here.isend(cupy.asarray(expected))
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    others = [cupy.full(30_000_000, i, cupy.uint8) for i in range(5)]
    received = np.zeros(30_000_000, np.uint8)
    there.recv_into(received, timeout_s=PATIENCE_S)
    handle.wait(PATIENCE_S)
    assert (received == expected).all()
    assert len(others) == 5


FREED = """
import cupy, sys
from tests.api.support import PATIENCE_S, pair
from transport.errors import WeftError
with pair(gpu_pool_bytes=2 << 20) as (here, there):
    address = cupy.cuda.runtime.malloc(64 << 20)
    memory = cupy.cuda.UnownedMemory(address, 64 << 20, None)
    array = cupy.ndarray(64 << 20, cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    handle = there.irecv_into(array)
    cupy.cuda.runtime.free(address)
    try:
        here.send(bytes(64 << 20), timeout_s=PATIENCE_S)
    except WeftError:
        pass  # the other end has closed
    try:
        handle.wait(PATIENCE_S)
    except WeftError as error:
        print(type(error).__name__, error)
"""
DEAD = """
import cupy, sys
from tests.api.support import PATIENCE_S, pair
from transport.errors import WeftError
with pair() as (here, there):
    array = cupy.zeros(1 << 20, cupy.uint8)
    handle = there.irecv_into(array)
    cupy.RawKernel('extern "C" __global__ void bad(int* p) { *p = 1; }', "bad")((1,), (1,), (64,))
    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
    try:
        here.send(bytes(1 << 20), timeout_s=PATIENCE_S)
    except WeftError:
        pass
    try:
        handle.wait(PATIENCE_S)
        there.irecv_into(array)
    except WeftError as error:
        print(type(error).__name__, error, flush=True)
import os
os._exit(0)  # CuPy cannot exit normally in a dead context
"""


@pytest.mark.parametrize("program", [FREED, DEAD], ids=["freed", "dead_context"])
def test_device__what_breaks_is_an_error_and_no_crash(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("DeviceError", "InvalidArgumentError")), done.stdout
    assert "CUDA_ERROR" in done.stdout or "freed" in done.stdout


def test_receive__withdrawn_writes_no_more(ends: Ends) -> None:
    here, there = ends
    received = cupy.full(1_000_000, 0xEE, cupy.uint8)
    with pytest.raises(TimedOutError):
        there.recv_into(received, timeout_s=0.05)
    with pytest.raises(WeftError):
        there.check()
    with pytest.raises(WeftError):
        here.send(random(1_000_000, 1), timeout_s=PATIENCE_S)
    assert bool((received == 0xEE).all())


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("mode", ["uc", "rc", "ud"])
def test_verbs__over_the_software_provider(library: str, mode: str) -> None:
    from tests.softverbs.transfer import exchange

    odd = {"REORDER": "0.02", "LATE": "0.02", "STALL": "0.02"}
    weathers = [{}, odd | {"LOSS": "0.01"}, odd | {"LOSS": "0.05"}]
    plans = [(100, 1_000_003, seed) for seed in range(len(weathers))]
    knobs = {"WEFT_RDMA": f"mode={mode}", "TRANSFER_ARRAYS": library}
    for weather, (received, sent) in zip(weathers, exchange(plans, weathers, **knobs), strict=True):
        assert (received["wrong"], received["touched"]) == (0, 0), weather
        # Arrays are sent without a copy; only the final "yes", perhaps resent, is copied.
        copied = sent["engine"]["payload_copied_bytes"]
        assert copied % len(b"yes") == 0
        assert copied < 100


def test_endpoint__faults_and_stripes() -> None:
    with pair(engines=2, stripes=4, fault={"loss": 0.01, "reorder": 0.02}) as (here, there):
        for seed, size_bytes in enumerate([1, 70_001, 5_000_003, 40_000_000]):
            sent, received = random(size_bytes, seed), cupy.zeros(size_bytes, cupy.uint8)
            move(here, there, sent, received)
            assert bool((sent == received).all())
