"""Finds address, size and stream of GPU arrays through DLPack or `__cuda_array_interface__`.

It works with any array library. The driver tells whether an address is in GPU memory.
"""

from __future__ import annotations

import ctypes
import math
import operator
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from transport import native
from transport.errors import OK, InvalidArgumentError, WeftError, error_for

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLPack's device types
LEGACY_STREAM = 1  # the default stream, as DLPack and __cuda_array_interface__ write it
NO_STREAM = -1  # tells a DLPack producer that it need not synchronise

DLPACK_VERSION = (1, 0)
DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf"}
TYPESTR = re.compile(r"[<>|=]([a-zA-Z])(\d+)$")
REDUCES = ("f32", "f16", "bf16", "f64", "i32", "i64", "u8")


class SupportsDLPack(Protocol):
    """An array of PyTorch, CuPy, JAX, ..., in GPU or host memory."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


class SupportsCudaArray(Protocol):
    """An array of Numba, CuPy, ..., in GPU memory."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class View(NamedTuple):
    """The memory of an array, and the object that keeps the memory alive."""

    address: int
    nbytes: int
    owner: object
    on_gpu: bool
    stream: int | None  # the stream to wait for; None: no stream
    element: str = ""  # element type: "f32", "bf16", "u8", ...
    # The GPU that the array names; if the array is not empty, the driver finds the GPU instead.
    device: int = 0


def stream_handle(stream: object, argument: str = "stream") -> int:
    """The handle of a stream of CuPy, PyTorch, Numba or CUDA's bindings, or given as an int."""
    found: Any = stream
    kind = type(stream).__name__
    try:
        if hasattr(stream, "__cuda_stream__"):
            protocol = stream.__cuda_stream__
            found = (protocol() if callable(protocol) else protocol)[1]
        elif "stream" in kind.lower():  # objects of other types may have `ptr` or `handle`, too
            for name in ("cuda_stream", "ptr", "handle"):
                if hasattr(stream, name):
                    found = getattr(stream, name)
                    break
        found = getattr(found, "value", found)  # a ctypes pointer has `value`: None if it is null
        found = 0 if found is None and stream is not None else found
        if isinstance(found, bool | str | bytes | float):
            raise TypeError
        handle = int(found)
    except (TypeError, ValueError, IndexError):
        text = "must be a stream of CuPy, PyTorch or Numba, or its handle"
        raise TypeError(f"{argument}: {text}, not {kind}") from None
    if not 0 <= handle < 1 << 64:
        raise InvalidArgumentError(f"{argument}: {handle} is not the handle of a stream")
    return handle or LEGACY_STREAM  # CUDA's handle of the default stream is 0


def is_array(obj: object) -> bool:
    """Whether the object supports DLPack or `__cuda_array_interface__`."""
    kind = type(obj)
    return hasattr(kind, "__dlpack_device__") or hasattr(kind, "__cuda_array_interface__")


def is_on_gpu(obj: Any) -> bool:
    """Whether the array reports that it is in the memory of a CUDA device."""
    if hasattr(type(obj), "__dlpack_device__"):
        return int(obj.__dlpack_device__()[0]) in (CUDA, CUDA_MANAGED)
    return hasattr(type(obj), "__cuda_array_interface__")


def view_of(
    obj: object,
    argument: str,
    *,
    writable: bool,
    stream: int | None = None,
    lent_streams: LentStreams | None = None,
) -> View:
    """The memory of `obj`. stream: the stream to wait for; None: the stream that the array names.

    Raises ValueError for an array that is not contiguous, is read-only but must be writable, or
    is neither in host nor in CUDA memory.
    """
    try:
        if hasattr(type(obj), "__dlpack_device__"):
            view = _by_dlpack(obj, argument, writable, stream, lent_streams)
        else:
            interface = obj.__cuda_array_interface__  # type: ignore[attr-defined]
            view = _by_interface(interface, obj, writable, stream)
        if not (0 <= view.address < 1 << 64 and 0 <= view.nbytes < 1 << 63):
            raise ValueError(f"{view.nbytes} bytes at {view.address:#x} are not valid memory")
    except WeftError:
        raise
    except (
        *(BufferError, RuntimeError, ValueError, OverflowError),
        *(KeyError, AttributeError, TypeError),
    ) as error:
        text = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidArgumentError(f"{argument}: this {type(obj).__name__}: {text}") from error
    return view


class LentStreams:
    """CUDA streams that one call borrows from weft, one for each GPU with arrays of the call."""

    def __init__(self, runtime: native.Runtime) -> None:
        self._runtime = runtime
        self.lent: dict[int, native.LentStream] = {}

    def handle(self, device: int, argument: str) -> int:
        if device not in self.lent:
            status, error, lent_stream = self._runtime.lend_stream(device)
            if status != OK or lent_stream is None:
                raise error_for(status, argument, error)
            self.lent[device] = lent_stream
        return self.lent[device].handle


def host_bytes(view: View) -> Any:
    """Host memory as an object with the buffer protocol, which keeps its owner alive."""
    if view.nbytes == 0:
        return bytearray()
    memory = (ctypes.c_ubyte * view.nbytes).from_address(view.address)
    memory.owner = view.owner  # type: ignore[attr-defined]
    return memory


def device_buffer(
    runtime: native.Runtime,
    views: Sequence[View],
    argument: str,
    stream: int | None,
    lent_streams: LentStreams,
) -> native.DeviceBuffer:
    """Makes one message of several arrays, all on one GPU."""
    runs = [(view.address, view.nbytes) for view in views]
    owners = [view.owner for view in views]
    status, error, buffer = runtime.hold_device(owners, runs, views[0].device if views else 0)
    if status != OK or buffer is None:
        raise error_for(status, argument, error)
    made_on = [view.stream for view in views] if stream is None else [stream]
    streams = {whose for whose in made_on if whose is not None}
    if len(streams) > 1:
        text = f"the arrays use {len(streams)} streams: pass stream= with one that waits for all"
        raise InvalidArgumentError(f"stream: {text}")
    for whose in streams:
        lent = [one for one in lent_streams.lent.values() if one.handle == whose]
        status, error = buffer.come_after_lent(*lent) if lent else buffer.come_after(whose)
        if status != OK:
            raise error_for(status, "stream", error)
    return buffer


def reduce_arrays(
    runtime: native.Runtime, arrays: dict[str, object], operation: str, stream: object
) -> None:
    """Queues `out` = `a` operation `b` on a stream; the result is also written to `also`."""
    if operation not in ("sum", "min", "max"):
        raise InvalidArgumentError(f"operation: must be sum, min or max, not {operation!r}")
    whose = None if stream is None else stream_handle(stream)
    views, lent = {}, {}
    for name, array in arrays.items():
        if not is_on_gpu(array):
            kind = type(array).__name__
            raise TypeError(f"{name}: must be an array in GPU memory, not {kind}")
        lent[name] = LentStreams(runtime)
        writable = name in ("out", "also")
        views[name] = view_of(array, name, writable=writable, stream=whose, lent_streams=lent[name])
    out = views["out"]
    if out.element not in REDUCES:
        raise InvalidArgumentError(f"out: elements must be {', '.join(REDUCES)}, not {out.element}")
    buffers = {}
    for name, view in views.items():
        if (view.element, view.nbytes) != (out.element, out.nbytes):
            told = f"{view.nbytes} bytes of {view.element}, `out` {out.nbytes} of {out.element}"
            raise InvalidArgumentError(f"{name}: has {told}")
        buffers[name] = device_buffer(runtime, [view], name, whose, lent[name])
    for name, buffer in buffers.items():
        if not buffer.lies_with(buffers["out"]):
            raise InvalidArgumentError(f"{name}: is not on the same GPU as `out`")
    status, error = native.reduce(
        *(out.element, operation, buffers["a"], buffers["b"], buffers["out"]),
        *(buffers.get("also"), LEGACY_STREAM if whose is None else whose),
    )
    if status != OK:
        raise error_for(status, "reduce", error)


def _by_dlpack(
    obj: Any, argument: str, writable: bool, stream: int | None, lent_streams: LentStreams | None
) -> View:
    kind, device = obj.__dlpack_device__()
    on_gpu = int(kind) in (CUDA, CUDA_MANAGED)
    if not on_gpu and int(kind) not in (CPU, CUDA_HOST):
        raise ValueError(f"the array's device has DLPack's type {int(kind)}, not that of CUDA")
    whose = stream
    given = NO_STREAM if on_gpu else None
    if on_gpu and stream is None and lent_streams is not None:
        whose = _stream_of_maker(obj, int(device))
        if whose is None:  # the array's library orders a borrowed stream after its own work
            whose = given = lent_streams.handle(int(device), argument)
    try:
        with _maker_is_at(obj, int(device)) if on_gpu else nullcontext():
            try:
                capsule = obj.__dlpack__(stream=given, max_version=DLPACK_VERSION)
            except TypeError:  # the library's DLPack is older than 1.0
                capsule = obj.__dlpack__(stream=given)
    except BufferError as error:
        if not on_gpu or not hasattr(type(obj), "__cuda_array_interface__"):
            raise
        if stream is None:
            raise BufferError(f"{error}; pass stream= to use it anyway") from error
        return _by_interface(obj.__cuda_array_interface__, obj, writable, stream)
    _, code, address, bits, shape, strides, read_only = native.read_dlpack(capsule)
    _check(shape, strides, 1, read_only and writable)
    nbytes = (bits * math.prod(shape) + 7) // 8
    element = f"{DLPACK_KINDS.get(code, 'x')}{bits}"
    return View(address, nbytes, (obj, capsule), on_gpu, whose, element, int(device))


def _stream_of_maker(obj: Any, device: int) -> int | None:
    """The current stream of the array's library in this thread, for CuPy and PyTorch; else None.

    A borrowed stream would also work, but it may be delayed by other streams, whose driver queue
    it shares.
    """
    torch, cupy = _maker(obj, "torch"), _maker(obj, "cupy")
    if torch is not None:
        return stream_handle(torch.cuda.current_stream(device))
    # CuPy reports only the stream of the current GPU.
    if cupy is not None and cupy.cuda.runtime.getDevice() == device:
        return stream_handle(cupy.cuda.get_current_stream())
    return None


def _maker(obj: object, name: str) -> Any:
    """The imported library of this name if it defines the object's type, else None."""
    roots = {kind.__module__.partition(".")[0] for kind in type(obj).__mro__}
    return sys.modules.get(name) if name in roots else None


def _maker_is_at(obj: object, device: int) -> AbstractContextManager[Any]:
    """Makes the array's GPU current for PyTorch, which refuses to export from another GPU."""
    torch = _maker(obj, "torch")
    current: AbstractContextManager[Any] = (
        nullcontext() if torch is None else torch.cuda.device(device)
    )
    return current


def _by_interface(
    interface: dict[str, Any], obj: object, writable: bool, stream: int | None
) -> View:
    address, read_only = interface["data"]
    match = TYPESTR.match(interface["typestr"])
    if match is None:
        raise ValueError(f"weft cannot send elements of the array's type {interface['typestr']!r}")
    if interface.get("mask") is not None:
        raise ValueError("the array has a mask, which weft does not support")
    shape = tuple(operator.index(length) for length in interface["shape"])
    itemsize = int(match.group(2)) * (4 if match.group(1) == "U" else 1)
    _check(shape, interface.get("strides"), itemsize, read_only and writable)
    # Before version 3 the interface has no stream. None should mean that no synchronisation is
    # needed; yet Numba's arrays report None even while a kernel on the default stream may use the
    # array.
    says = interface.get("stream") if interface.get("version", 0) >= 3 else None
    whose = stream if stream is not None else LEGACY_STREAM if says is None else stream_handle(says)
    element = f"{'x' if interface['typestr'][0] == '>' else match.group(1)}{8 * itemsize}"
    return View(int(address or 0), itemsize * math.prod(shape), obj, True, whose, element)


def _check(shape: Sequence[int], strides: Sequence[int] | None, unit: int, read_only: bool) -> None:
    """Raises ValueError if the array is not C-contiguous (`strides` in `unit`) or is read-only."""
    if read_only:
        raise ValueError("the array is read-only, and must be writable")
    if any(length < 0 for length in shape):
        raise ValueError(f"the array's shape has a negative length: {tuple(shape)}")
    if strides is None or math.prod(shape) == 0:
        return
    expected = unit
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            raise ValueError("the array is not contiguous in memory: send a contiguous copy")
        expected *= length
