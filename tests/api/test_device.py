"""Tests arrays in GPU memory: transfers, stream order, and an error for each mistake.

The GPUs are fake (fake_gpu.py); tests/device uses real ones.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.api.fake_gpu import FakeArray, FakeGpu, FakeTensor
from tests.api.support import LOCAL, PATIENCE_S, ROOT, content, pair
from tests.environment import OVER_THE_NETWORK
from tests.waiting import until
from transport import Connection, native
from transport.errors import (
    DeviceError,
    DeviceMissingError,
    InvalidArgumentError,
    OperationCancelledError,
    TimedOutError,
    WeftError,
)

Ends = tuple[Connection, Connection]


@pytest.fixture(name="gpu", scope="module")
def gpu_(pytestconfig: pytest.Config) -> FakeGpu:
    library = Path(pytestconfig.getoption("--build-tree")) / "libweft_fake_cuda.so"
    assert library.exists(), f"{library} is missing: make test-native builds it"
    return FakeGpu(library)


@pytest.fixture(name="ends", params=["off", "auto"], ids=["network", "local"])
def ends_(gpu: FakeGpu, request: pytest.FixtureRequest) -> Iterator[Ends]:
    with pair(gpu_pool_bytes=1 << 21, local=request.param) as ends:
        yield ends
    gpu.fail_at(None)


def filled(gpu: FakeGpu, size_bytes: int, seed: int = 1, **more: Any) -> FakeArray:
    """Makes an array of random bytes in fake GPU memory."""
    return FakeArray(gpu, np.frombuffer(bytearray(content(size_bytes, seed)), np.uint8), **more)


def empty(gpu: FakeGpu, size_bytes: int, **more: Any) -> FakeArray:
    """Makes an empty array in fake GPU memory, to receive into."""
    return FakeArray(gpu, np.full(size_bytes, 0xEE, np.uint8), **more)


@pytest.mark.parametrize("size_bytes", [0, 1, 9_000, 1_000_003])
def test_device__arrays_cross(gpu: FakeGpu, ends: Ends, size_bytes: int) -> None:
    here, there = ends
    sent, received = filled(gpu, size_bytes), empty(gpu, size_bytes + 100, device=1)
    handle = there.irecv_into(received)
    here.send(sent, timeout_s=PATIENCE_S)
    assert handle.wait(PATIENCE_S) == size_bytes
    assert (received.host[:size_bytes] == sent.host).all()
    assert (received.host[size_bytes:] == 0xEE).all()


def test_device__a_host_is_at_the_other_end(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    sent, received = filled(gpu, 2_000_000), empty(gpu, 2_000_000)
    handle = here.isend(sent)
    assert there.recv(2_000_000, timeout_s=PATIENCE_S) == sent.host.tobytes()
    handle.wait(PATIENCE_S)
    handle = here.irecv_into(received)
    there.send(sent.host, timeout_s=PATIENCE_S)
    assert handle.wait(PATIENCE_S) == 2_000_000
    assert (received.host == sent.host).all()


@pytest.mark.parametrize("old", [False, True])
def test_device__dlpack_tensors_cross(gpu: FakeGpu, ends: Ends, old: bool) -> None:
    here, there = ends
    sent = FakeTensor(FakeArray(gpu, np.arange(60_000, dtype=np.float32).reshape(3, 4, 5_000)))
    received = FakeTensor(empty(gpu, 240_000), old=old)
    handle = there.irecv_into(received)
    here.send(sent, timeout_s=PATIENCE_S)
    assert handle.wait(PATIENCE_S) == 240_000
    assert received.array.host.tobytes() == sent.array.host.tobytes()
    # weft lends the array's library a stream, which the library makes wait for its own work, unless
    # the caller names a stream.
    assert len(sent.streams) == len(received.streams) == 1
    assert all((one or 0) > 2 for one in sent.streams + received.streams)
    handle = there.irecv_into(received, stream=gpu.stream())
    here.send(sent, timeout_s=PATIENCE_S, stream=0)
    assert handle.wait(PATIENCE_S) == 240_000
    assert sent.streams[1:] == received.streams[1:] == [-1]


class HostTensor:
    """A host array without the buffer protocol, like PyTorch's tensors."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host

    def __dlpack_device__(self) -> Any:
        return self.host.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        return self.host.__dlpack__(**asked)


def test_device__a_tensor_of_the_host_is_a_buffer(ends: Ends) -> None:
    here, there = ends
    sent, received = HostTensor(np.arange(5_000.0)), HostTensor(np.zeros(6_000))
    handle = there.irecv_into(received)
    here.send(sent, timeout_s=PATIENCE_S)
    assert handle.wait(PATIENCE_S) == 40_000
    assert (received.host[:5_000] == sent.host).all()
    here.send(HostTensor(np.zeros(0)), timeout_s=PATIENCE_S)
    assert there.recv(10, timeout_s=PATIENCE_S) == b""
    with pytest.raises(InvalidArgumentError, match=r"buf: .*the array is not contiguous"):
        here.send(HostTensor(np.zeros((4, 4)).T))
    with pytest.raises(InvalidArgumentError, match="stream: `buf` is host memory"):
        here.send(sent, stream=1)


def test_device__a_list_is_one_message(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    sizes = [(i * 7_919) % 3_001 for i in range(300)]
    sent = [filled(gpu, size, seed) for seed, size in enumerate(sizes)]
    received = [FakeTensor(empty(gpu, size)) for size in reversed(sizes)]
    handle = there.irecv_into(received)
    here.send(sent, timeout_s=PATIENCE_S)
    assert handle.wait(PATIENCE_S) == sum(sizes)
    whole = b"".join(array.host.tobytes() for array in sent)
    assert b"".join(tensor.array.host.tobytes() for tensor in received) == whole
    here.send([], timeout_s=PATIENCE_S)
    assert there.recv(10, timeout_s=PATIENCE_S) == b""


def test_device__a_list_of_the_hosts_is_one_message(ends: Ends) -> None:
    here, there = ends
    numbers = np.arange(1_000, dtype=np.int16)
    sent: list[Any] = [b"first", numbers, np.zeros((0, 4)), HostTensor(np.ones(7))]
    whole = b"first" + numbers.tobytes() + np.ones(7).tobytes()
    places: list[Any] = [bytearray(4), bytearray(0), np.zeros(40, np.int64), bytearray(5_000)]
    handle = there.irecv_into(places)
    here.send(sent, timeout_s=PATIENCE_S)
    while not handle.done:
        pass
    assert handle.nbytes == len(whole)
    got = b"".join(bytes(place) for place in places)
    assert got == whole.ljust(len(got), b"\0")
    here.send([], timeout_s=PATIENCE_S)
    assert there.recv_into([], timeout_s=PATIENCE_S) == 0
    with (
        here._owner.register(bytearray(10)) as memory,
        pytest.raises(InvalidArgumentError, match="memory: `buf` is a list"),
    ):
        here.isend([b"x"], memory=memory)


def test_device__more_than_the_pool_and_the_rings_hold(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    sent = [filled(gpu, 400_000 + i, i) for i in range(150)]
    received = [empty(gpu, 400_200) for _ in sent]
    handles = [there.irecv_into(array) for array in received]
    handles += [here.isend(array) for array in sent]
    for handle in handles:
        handle.wait(PATIENCE_S)
    for source, target in zip(sent, received, strict=True):
        assert (target.host[: source.host.size] == source.host).all()


def test_device__awaited(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    sent, received = filled(gpu, 700_000), empty(gpu, 700_000)

    async def exchange() -> int:
        receive = asyncio.create_task(there.arecv_into(received))
        await here.asend(sent)
        return await asyncio.wait_for(receive, PATIENCE_S)

    assert asyncio.run(exchange()) == 700_000
    assert (received.host == sent.host).all()


def test_device__streams_order_the_work(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    bytes_ = np.frombuffer(content(500_000, 3), np.uint8)
    produced, received, consumed = empty(gpu, 500_000), empty(gpu, 500_000), gpu.stream()
    producer = gpu.stream()
    gpu.copy(producer, produced, bytes_)  # done later, when the stream runs
    handle = there.irecv_into(received)
    handle.wait_on(consumed)
    here.send(produced, timeout_s=PATIENCE_S, stream=producer)
    assert handle.wait(PATIENCE_S) == 500_000
    gpu.finish(consumed)
    assert (received.host == bytes_).all()
    handle.wait_on(consumed)  # the message is done, so the stream does not wait
    host = here.isend(b"x")
    with pytest.raises(InvalidArgumentError, match="stream: this message is in host memory"):
        host.wait_on(consumed)


class CupyStream:
    ptr = 0


class TorchStream:
    cuda_stream = 1


class CudaStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 2


def test_device__streams_of_any_library(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    sent = filled(gpu, 10)
    for stream in (CupyStream(), TorchStream(), CudaStream(), 0, gpu.stream()):
        here.send(sent, timeout_s=PATIENCE_S, stream=stream)
        assert there.recv(10, timeout_s=PATIENCE_S) == sent.host.tobytes()
    # First an array that names its stream; then one with version 2 of the array interface, which
    # names no stream, so that the default stream is used.
    for more in ({"stream": gpu.stream()}, {"version": 2}):
        here.send(filled(gpu, 10, **more), timeout_s=PATIENCE_S)
        assert there.recv(10, timeout_s=PATIENCE_S) == sent.host.tobytes()


def test_device__messages_that_wait_for_each_other_by_a_stream(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    stream = gpu.stream()
    received = [empty(gpu, 50_000) for _ in range(10)]
    handles = []
    for array in received:
        handles.append(there.irecv_into(array, stream=stream))
        handles[-1].wait_on(stream)
    for i, (array, handle) in enumerate(zip(received, handles, strict=True)):
        here.send(filled(gpu, 50_000, i), timeout_s=PATIENCE_S)
        assert handle.wait(PATIENCE_S) == 50_000
        assert array.host.tobytes() == content(50_000, i)


def test_device__a_mistake_is_that_messages_alone(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    with (
        there._owner.register(bytearray(10)) as foreign,
        pytest.raises(ValueError, match="memory"),
    ):
        here.isend(bytearray(10), memory=foreign)
    with pytest.raises(ValueError, match="timeout_s: must be 0 or more"):
        there.recv_into(bytearray(10), timeout_s=-1)
    with pytest.raises(ValueError, match="timeout_s: must be 0 or more"):
        here.send(b"nothing", timeout_s=-1)
    here.send(b"innocent", timeout_s=PATIENCE_S)
    assert there.recv(10, timeout_s=PATIENCE_S) == b"innocent"


def test_device__withdrawing_while_others_post(gpu: FakeGpu) -> None:
    for _ in range(10):
        with pair(gpu_pool_bytes=1 << 21) as (here, there):

            def post(ends: Ends = (here, there)) -> None:
                with contextlib.suppress(WeftError):
                    for i in range(300):
                        ends[1].isend(filled(gpu, 1_000, i))

            poster = threading.Thread(target=post)
            poster.start()
            with pytest.raises(WeftError):
                there.recv_into(empty(gpu, 100_000), timeout_s=0.01)
            poster.join()


def test_device__a_list_of_the_hosts_is_filled_though_nobody_asks(ends: Ends) -> None:
    here, there = ends
    first, second = bytearray(3), bytearray(3)
    there.irecv_into([first, second])
    here.send(b"abcdef", timeout_s=PATIENCE_S)

    def filled_after_another_message() -> bool:
        here.send(b"", timeout_s=PATIENCE_S)
        there.recv(0, timeout_s=PATIENCE_S)
        return bytes(first + second) == b"abcdef"

    until(filled_after_another_message, "the list is not filled")


def test_device__a_forked_child_closes_at_once(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    handle = there.irecv_into(empty(gpu, 100))
    child = os.fork()
    if child == 0:
        here.close()
        there.close()
        os._exit(0)
    until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), "the child hangs")
    here.send(filled(gpu, 100), timeout_s=PATIENCE_S)
    assert handle.wait(PATIENCE_S) == 100


class Odd:
    """An object with the given attributes, for tests of odd arrays."""

    def __init__(self, **said: Any) -> None:
        self.said = said

    @property
    def __cuda_array_interface__(self) -> Any:
        return {"shape": (1,), "typestr": "|u1", "data": (1 << 20, False), "version": 3} | self.said


class NoStream:
    def __cuda_stream__(self) -> Any:
        return (0,)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_order__a_library_is_asked_for_its_stream(
    gpu: FakeGpu, ends: Ends, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """For arrays of PyTorch and CuPy, also subclasses, weft asks the library for its stream."""
    here, there = ends
    producer, current = gpu.stream(), [0]
    entered: list[int] = []

    def at(device: int) -> contextlib.AbstractContextManager[None]:
        entered.append(device)
        return contextlib.nullcontext()

    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: current[0]),
        current_stream=lambda device: producer,
        get_current_stream=lambda: producer,
        device=at,
    )
    monkeypatch.setitem(sys.modules, library, SimpleNamespace(cuda=cuda))
    its_own = type("Tensor", (FakeTensor,), {"__module__": f"{library}.core"})
    callers = type("Mine", (its_own,), {"__module__": "mine"})
    for kind in (its_own, callers):
        expected = np.frombuffer(content(50_000, 3), np.uint8)
        sent, received = empty(gpu, 50_000), empty(gpu, 50_000)
        tensor = kind(sent)
        gpu.copy(producer, sent, expected)
        handle = there.irecv_into(received)
        here.send(tensor, timeout_s=PATIENCE_S)
        handle.wait(PATIENCE_S)
        assert (received.host == expected).all()
        assert tensor.streams == [-1]
    assert entered == ([0, 0] if library == "torch" else [])
    # CuPy reports only the stream of the current GPU.
    current[0] = 1
    tensor = its_own(empty(gpu, 10))
    handle = there.irecv_into(empty(gpu, 10))
    here.send(tensor, timeout_s=PATIENCE_S)
    handle.wait(PATIENCE_S)
    assert (tensor.streams == [-1]) == (library == "torch")


def mistakes(gpu: FakeGpu) -> Iterator[tuple[Any, Any, type[Exception], str]]:
    """Yields mistakes: (receive buffer, stream, expected error, its text)."""
    good = empty(gpu, 100)
    invalid = InvalidArgumentError
    yield empty(gpu, 100, managed=True), None, invalid, "buf: managed memory.*copy it to device"
    yield empty(gpu, 100, data=(1 << 20, False)), None, invalid, "buf: no device memory at 0x1"
    yield empty(gpu, 100, shape=(200,)), None, invalid, "buf: .*shorter than the array says"
    yield empty(gpu, 100, data=(good.address, True)), None, invalid, "buf: .*is read-only"
    yield FakeTensor(good, read_only=True), None, invalid, "buf: .*the array is read-only"
    strided = FakeArray(gpu, np.zeros((8, 8), np.int32)[:, ::2])
    yield strided, None, invalid, "buf: .*the array is not contiguous.*send a contiguous"
    yield FakeTensor(strided), None, invalid, "buf: this FakeTensor: the array is not contiguous"
    yield empty(gpu, 100, mask=good), None, invalid, "buf: .*has a mask"
    yield empty(gpu, 100, typestr="nonsense"), None, invalid, "buf: .*array's type 'nonsense'"
    yield empty(gpu, 100, shape=(-1,)), None, invalid, "buf: .*the array's shape has"
    yield empty(gpu, 100, data=None), None, invalid, "buf: this FakeArray"
    yield FakeTensor(good, kind=7), None, invalid, "buf: .*DLPack's type 7, not that of CUDA"
    yield FakeTensor(good, major=2), None, invalid, "buf: .*a capsule of DLPack 2"
    yield FakeTensor(good, name=b"used_dltensor"), None, invalid, "buf: .*named 'used_dltensor'"
    yield [good, empty(gpu, 10, device=1)], None, invalid, "buf: .*on device 0 and on device 1"
    yield [good, bytearray(4)], None, invalid, r"buf\[1\]: a list must lie in GPU memory or in host"
    yield [np.zeros(4), good], None, invalid, r"buf\[1\]: a list must lie in GPU memory or in host"
    yield [bytearray(4), 7], None, TypeError, r"buf\[1\]: needs an object with a buffer.*not int"
    yield [bytearray(4), b"fixed"], None, ValueError, r"buf\[1\]: this bytes is read-only"
    yield [good, strided], None, invalid, r"buf\[1\]: this FakeArray: the array is not contiguous"
    yield Odd(shape=(10.0,)), None, invalid, "buf: this Odd: .*integer"
    yield Odd(shape=(1 << 70,)), None, invalid, "buf: this Odd: .* are not valid memory"
    yield Odd(data=(-5, False)), None, invalid, "buf: this Odd: .* are not valid memory"
    yield Odd(data=(1 << 64, False)), None, invalid, "buf: this Odd: .* are not valid memory"
    yield good, NoStream(), TypeError, "stream: must be a stream of CuPy.*not NoStream"
    yield good, 1 << 64, invalid, "stream: .* is not the handle of a stream"
    yield np.zeros(3, object), None, invalid, "buf: an array of Python objects"
    dates = np.zeros(3, "datetime64[s]")
    yield [bytearray(2), dates], None, invalid, r"buf\[1\]: cannot use this ndarray"
    yield object(), None, TypeError, "buf: needs an object with a buffer.*not object"
    yield good, gpu.stream(1), invalid, "stream: belongs to another device or context"
    yield good, "fast", TypeError, "stream: must be a stream of CuPy, PyTorch or Numba.*not str"
    yield good, -3, invalid, "stream: -3 is not the handle of a stream"
    yield bytearray(5), gpu.stream(), invalid, "stream: `buf` is host memory"
    two = [empty(gpu, 1, stream=gpu.stream()), empty(gpu, 1, stream=gpu.stream())]
    yield two, None, invalid, "stream: the arrays use 2 streams: pass stream="


def test_device__every_mistake_is_one_error_that_names_the_argument(
    gpu: FakeGpu, ends: Ends
) -> None:
    here, there = ends
    for buf, stream, error, words in mistakes(gpu):
        with pytest.raises(error, match=words):
            there.irecv_into(buf, stream=stream)
    with pytest.raises(ValueError, match="memory: the buffer does not lie inside"):
        here.isend(filled(gpu, 5), memory=here._owner.register(bytearray(5)))
    here.send(b"nothing was lost", timeout_s=PATIENCE_S)
    assert there.recv(100, timeout_s=PATIENCE_S) == b"nothing was lost"


def test_device__memory_freed_while_in_use_is_an_error(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    received = empty(gpu, 4_000_000)  # larger than the pinned pool, so the send does not end
    handle = there.irecv_into(received)
    received.free()
    with pytest.raises(WeftError):
        here.send(content(4_000_000, 1), timeout_s=PATIENCE_S)
    with pytest.raises(DeviceError, match=r"receive from .*: cuMemcpyHtoDAsync"):
        handle.wait(PATIENCE_S)


def test_device__a_dead_context_is_an_error(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    sent, received = filled(gpu, 3_000_000), empty(gpu, 3_000_000)
    receive = there.irecv_into(received)
    gpu.fail_at("cuEventQuery", stays=True)
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access"):
        here.send(sent, timeout_s=PATIENCE_S)
    with pytest.raises(WeftError):
        receive.wait(PATIENCE_S)


def test_device__a_receive_that_is_withdrawn_writes_no_more(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    received = empty(gpu, 1_000)
    with pytest.raises(TimedOutError):
        there.recv_into(received, timeout_s=0.05)
    with pytest.raises(WeftError):
        there.check()
    with pytest.raises(WeftError):
        here.send(b"late", timeout_s=PATIENCE_S)
    assert (received.host == 0xEE).all()


def test_device__close_ends_what_is_under_way(gpu: FakeGpu, ends: Ends) -> None:
    _, there = ends
    handles = [there.irecv_into(empty(gpu, 1_000_000)) for _ in range(200)]
    there.close()
    for handle in handles:
        with pytest.raises(OperationCancelledError):
            handle.wait(PATIENCE_S)


def test_device__buffers_are_held_until_they_are_done(gpu: FakeGpu, ends: Ends) -> None:
    here, there = ends
    received = empty(gpu, 10)
    before = sys.getrefcount(received)
    handle = there.irecv_into(received)
    assert sys.getrefcount(received) > before
    here.send(b"0123456789", timeout_s=PATIENCE_S)
    handle.wait(PATIENCE_S)
    here.send(b"")
    assert there.recv(1, timeout_s=PATIENCE_S) == b""
    del handle
    assert sys.getrefcount(received) == before


KINDS = [np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8]


@pytest.mark.skipif(native.why_no_kernels() != "", reason=native.why_no_kernels())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: np.dtype(kind).name)
def test_reduce__in_one_pass_to_two_places(gpu: FakeGpu, ends: Ends, kind: Any) -> None:
    endpoint = ends[0]._owner
    draw = np.random.default_rng(5).integers
    a, b = (FakeArray(gpu, draw(0, 100, 1_001).astype(kind)) for _ in range(2))
    out, also = (FakeTensor(FakeArray(gpu, np.zeros(1_001, kind))) for _ in range(2))
    if np.issubdtype(kind, np.floating):  # FakeTensor can report only floating types
        endpoint.reduce(a, b, out, also=also)
        gpu.finish(1)  # 1 is the default stream
        assert (out.array.host == a.host + b.host).all()
        assert (also.array.host == a.host + b.host).all()
    stream = gpu.stream()
    for operation, expected in [("min", np.minimum), ("max", np.maximum), ("sum", np.add)]:
        before = a.host.copy()
        endpoint.reduce(a, b, a, operation=operation, stream=stream)
        gpu.finish(stream)
        assert (a.host == expected(before, b.host)).all()


def test_reduce__mistakes_name_the_argument(gpu: FakeGpu, ends: Ends) -> None:
    reduce = ends[0]._owner.reduce
    a, b, out = (FakeArray(gpu, np.zeros(10, np.float32)) for _ in range(3))
    if native.why_no_kernels():
        with pytest.raises(DeviceMissingError, match="built without nvcc"):
            reduce(a, b, out)
        return
    with pytest.raises(InvalidArgumentError, match="operation: must be sum, min or max, not 'xor'"):
        reduce(a, b, out, operation="xor")
    with pytest.raises(TypeError, match="b: must be an array in GPU memory, not ndarray"):
        reduce(a, np.zeros(10, np.float32), out)
    short = FakeArray(gpu, np.zeros(9, np.float32))
    with pytest.raises(InvalidArgumentError, match="also: has 36 bytes of f32, `out` 40 of f32"):
        reduce(a, b, out, also=short)
    whole = FakeArray(gpu, np.zeros(10, np.int32))
    with pytest.raises(InvalidArgumentError, match="b: has 40 bytes of i32, `out` 40 of f32"):
        reduce(a, whole, out)
    words = FakeArray(gpu, np.zeros(10, np.complex64))
    with pytest.raises(InvalidArgumentError, match=r"out: elements must be f32, .* not c64"):
        reduce(a, b, words)
    there = FakeArray(gpu, np.zeros(10, np.float32), device=1)
    with pytest.raises(InvalidArgumentError, match="b: is not on the same GPU as `out`"):
        reduce(a, there, out)
    with pytest.raises(InvalidArgumentError, match="stream: belongs to another device"):
        reduce(a, b, out, stream=gpu.stream(1))
    gpu.fail_at("cuLaunchKernel")
    with pytest.raises(DeviceError, match="cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS"):
        reduce(a, b, out)


WITHOUT = """
import numpy as np
from transport import Endpoint, errors

class Array:
    __cuda_array_interface__ = dict(shape=(4,), typestr="|u1", data=(4096, False), version=3)

with Endpoint(interfaces="lo") as a, a.listen() as listener, a.connect(listener.handle) as here:
    there = listener.accept(timeout_s=240)
    try:
        here.send(Array())
    except errors.DeviceMissingError as error:
        print(error)
    here.send(b"host", timeout_s=240)
    print(there.recv(10, timeout_s=240))
"""


def test_device__without_a_gpu_it_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=True,
        env=OVER_THE_NETWORK | {"PATH": "", "WEFT_INTERFACES": str(LOCAL["interfaces"])},
    )
    first, second = done.stdout.splitlines()
    # The error without libcuda; on a host with a GPU, the error is that the address is wrong.
    assert first.startswith("buf: no libcuda.so.1 on this host: device memory needs the NVIDIA")
    assert second == "b'host'"
