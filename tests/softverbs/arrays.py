"""The memory of a transfer's messages: host memory, GPU memory, or fake GPU memory.

Only copies can access a fake GPU's memory; a direct access kills the process.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np


class Host:
    """Messages in host memory: byte arrays."""

    def make(self, nbytes: int) -> Any:
        return bytearray(nbytes)

    def part(self, array: Any, nbytes: int) -> Any:
        return memoryview(array)[:nbytes]

    def put(self, array: Any, content: bytes) -> None:
        array[: len(content)] = content

    def get(self, array: Any, nbytes: int) -> bytes:
        return bytes(array[:nbytes])


class _Untouchable:
    """An array in fake GPU memory, with `__cuda_array_interface__`."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "stream": None,
        }


# The attribute is defined on the type, as in array libraries.
_Untouchable.__cuda_array_interface__ = None  # type: ignore[assignment]


class Fake:
    """GPU memory of the fake libcuda (tests/native/fake_cuda.cc), whose path is in FAKE_CUDA."""

    def __init__(self) -> None:
        self.calls = ctypes.CDLL(os.environ["FAKE_CUDA"])
        self.calls.fake_cuda_allocate.restype = ctypes.c_uint64
        self.calls.fake_cuda_reach.restype = ctypes.c_void_p

    def make(self, nbytes: int) -> Any:
        address = self.calls.fake_cuda_allocate(ctypes.c_size_t(max(nbytes, 1)), 0)
        return _Untouchable(address, nbytes, self)

    def part(self, array: Any, nbytes: int) -> Any:
        return _Untouchable(array.address, nbytes, array)

    def put(self, array: Any, content: bytes) -> None:
        ctypes.memmove(self._reach(array), content, len(content))

    def get(self, array: Any, nbytes: int) -> bytes:
        return ctypes.string_at(self._reach(array), nbytes)

    def _reach(self, array: Any) -> int:
        found = self.calls.fake_cuda_reach(ctypes.c_uint64(array.address))
        assert isinstance(found, int)
        return found


class Cupy:
    """CuPy arrays on the last GPU."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(cupy.cuda.runtime.getDeviceCount() - 1).use()

    def make(self, nbytes: int) -> Any:
        return self.cupy.zeros(nbytes, self.cupy.uint8)

    def part(self, array: Any, nbytes: int) -> Any:
        return array[:nbytes]

    def put(self, array: Any, content: bytes) -> None:
        array[: len(content)] = self.cupy.asarray(np.frombuffer(content, np.uint8))

    def get(self, array: Any, nbytes: int) -> bytes:
        return bytes(array[:nbytes].get())


class Torch:
    """PyTorch tensors on the first GPU."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def make(self, nbytes: int) -> Any:
        return self.torch.zeros(nbytes, dtype=self.torch.uint8, device="cuda")

    def part(self, array: Any, nbytes: int) -> Any:
        return array[:nbytes]

    def put(self, array: Any, content: bytes) -> None:
        if content:  # torch.frombuffer refuses an empty buffer
            host = self.torch.frombuffer(bytearray(content), dtype=self.torch.uint8)
            array[: len(content)] = host

    def get(self, array: Any, nbytes: int) -> bytes:
        return bytes(array[:nbytes].cpu().numpy())


ARRAYS: dict[str, Any] = {"host": Host, "fake": Fake, "cupy": Cupy, "torch": Torch}
