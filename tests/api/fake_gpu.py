"""Arrays on two fake GPUs, with tests/native/fake_cuda.cc in place of libcuda.

The fake's device memory is host memory, its copies end late, and tests can make its calls fail.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

ILLEGAL_ADDRESS = 700


class FakeGpu:
    """Loads the fake under the name libcuda, so that later loads of libcuda find the fake."""

    def __init__(self, library: Path) -> None:
        self.calls = ctypes.CDLL(str(library))
        self.calls.fake_cuda_context.restype = ctypes.c_void_p

    def fail_at(self, symbol: str | None, nth: int = 1, stays: bool = False) -> None:
        """Makes the n-th next call of a function fail; `stays`: later calls fail, too."""
        name = None if symbol is None else symbol.encode()
        self.calls.fake_cuda_fail(name, nth, ILLEGAL_ADDRESS, int(stays))

    def stream(self, device: int = 0) -> int:
        """Makes a stream of a device's primary context."""
        made = ctypes.c_void_p()
        context = ctypes.c_void_p(self.calls.fake_cuda_context(device))
        assert self.calls.cuCtxPushCurrent_v2(context) == 0
        assert self.calls.cuStreamCreate(ctypes.byref(made), 1) == 0
        assert self.calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0
        assert made.value is not None
        return made.value

    def copy(self, stream: int, array: "FakeArray", content: np.ndarray) -> None:
        """Queues a copy on a stream; the fake copies when a call waits for the stream."""
        context = ctypes.c_void_p(self.calls.fake_cuda_context(0))
        assert self.calls.cuCtxPushCurrent_v2(context) == 0
        status = self.calls.cuMemcpyHtoDAsync_v2(
            ctypes.c_uint64(array.address),
            content.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(content.nbytes),
            ctypes.c_void_p(stream),
        )
        assert status == 0
        assert self.calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0

    def finish(self, stream: int) -> None:
        """Completes a stream's work."""
        context = ctypes.c_void_p(self.calls.fake_cuda_context(0))
        assert self.calls.cuCtxPushCurrent_v2(context) == 0
        assert self.calls.cuStreamSynchronize(ctypes.c_void_p(stream)) == 0
        assert self.calls.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0


class FakeArray:
    """An array in fake GPU memory like Numba's: `__cuda_array_interface__`, version 3."""

    def __init__(
        self, gpu: FakeGpu, host: np.ndarray, *, device: int = 0, managed: bool = False, **more: Any
    ) -> None:
        self.gpu, self.host, self.more = gpu, host, more
        self.address = host.ctypes.data
        self._tell(max(host.nbytes, 1), device, managed)

    def _tell(self, nbytes: int, device: int = 0, managed: bool = False) -> None:
        self.gpu.calls.fake_cuda_memory(
            ctypes.c_void_p(self.address), ctypes.c_size_t(nbytes), device, int(managed)
        )

    def __del__(self) -> None:
        self.free()

    def free(self) -> None:
        """Frees the memory, even if it is in use."""
        self._tell(0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "data": (self.address, False),
            "strides": None if self.host.flags.c_contiguous else self.host.strides,
            "version": 3,
            "stream": None,
        } | self.more


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class FakeTensor:
    """A FakeArray as a DLPack tensor, like PyTorch's; `old`: of a version before 1.0."""

    def __init__(
        self,
        array: FakeArray,
        *,
        old: bool = False,
        read_only: bool = False,
        kind: int = 2,
        major: int = 1,
        name: bytes | None = None,
    ) -> None:
        self.array, self.old, self.read_only = array, old, read_only
        self.kind, self.major, self.name = kind, major, name
        self.streams: list[int | None] = []  # the `stream` argument of each __dlpack__ call

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, *, stream: int | None = None, **versions: Any) -> Any:
        if self.old and versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        host = self.array.host
        shape = (ctypes.c_int64 * max(host.ndim, 1))(*host.shape)
        strides = (ctypes.c_int64 * max(host.ndim, 1))(
            *(stride // host.itemsize for stride in host.strides)
        )
        tensor = _Tensor(
            self.array.address - 16,
            *(self.kind, 0, host.ndim, 2, host.itemsize * 8, 1),
            ctypes.addressof(shape),
            ctypes.addressof(strides),
            16,
        )
        managed: Any = (
            _Managed(tensor)
            if self.old
            else _Versioned(major=self.major, flags=int(self.read_only), tensor=tensor)
        )
        self.kept = (managed, shape, strides)
        self.called = self.name or (b"dltensor" if self.old else b"dltensor_versioned")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(managed), self.called, None)
