"""The types of the buffers that callers pass: host memory, and arrays on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from transport.endpoint.device import SupportsCudaArray, SupportsDLPack

if TYPE_CHECKING:
    import numpy as np


class SupportsBuffer(Protocol):
    """An object with the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


DeviceArray: TypeAlias = "SupportsDLPack | SupportsCudaArray"
Single: TypeAlias = "SupportsBuffer | np.ndarray[Any, Any] | DeviceArray"
Buffer: TypeAlias = "Single | Sequence[Single]"
