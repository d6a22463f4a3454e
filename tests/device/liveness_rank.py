"""One rank of liveness.py over NCCL's C interface: all-reduces, compared element by element.

It prints events as JSON lines. After an error it makes a new communicator with a new id.
"""

import ctypes
import glob
import json
import site
import sys
import time
from pathlib import Path
from typing import Any

import torch

INT32, SUM, IN_PROGRESS, SUCCESS = 2, 0, 7, 0
COUNT = 8 << 20  # number of int32 elements: 32 MB
ID_WAIT_S = 120


class UniqueId(ctypes.Structure):
    """The C struct ncclUniqueId: 128 bytes, passed by value."""

    _fields_ = [("internal", ctypes.c_char * 128)]


def library() -> ctypes.CDLL:
    """The NCCL library installed with PyTorch."""
    folders = [*site.getsitepackages(), *sys.path]
    found = [name for one in folders for name in glob.glob(f"{one}/nvidia/nccl/lib/libnccl.so.2")]
    return ctypes.CDLL(found[0] if found else "libnccl.so.2", mode=ctypes.RTLD_GLOBAL)


def say(**facts: Any) -> None:
    print(json.dumps({"at": time.time()} | facts), flush=True)


class Rank:
    """A communicator and the buffer of its all-reduces."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self.nccl = library()
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.folder, self.rank, self.ranks = folder, rank, ranks
        self.comm = ctypes.c_void_p()
        self.stream = torch.cuda.Stream()
        self.index = torch.arange(COUNT, dtype=torch.int32, device="cuda") % 1_000_003

    def text(self, result: int) -> str:
        return str(self.nccl.ncclGetErrorString(result).decode())

    def unique_id(self, generation: int) -> UniqueId:
        """Rank 0 writes the communicator's id to a file; the other rank reads it from there."""
        made, file = UniqueId(), self.folder / f"id-{generation}"
        if self.rank == 0:
            assert self.nccl.ncclGetUniqueId(ctypes.byref(made)) == SUCCESS
            part = file.with_suffix(".part")
            part.write_bytes(bytes(made))
            part.rename(file)
            return made
        until = time.monotonic() + ID_WAIT_S
        while not file.exists():
            assert time.monotonic() < until, "no id"
            time.sleep(0.01)
        ctypes.memmove(ctypes.byref(made), file.read_bytes(), 128)
        return made

    def begin(self, generation: int) -> None:
        made = self.unique_id(generation)
        result = self.nccl.ncclCommInitRank(
            ctypes.byref(self.comm), self.ranks, made, ctypes.c_int(self.rank)
        )
        say(event="communicator", generation=generation, result=self.text(result))
        assert result == SUCCESS

    def error(self) -> int:
        found = ctypes.c_int(SUCCESS)
        result = self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(found))
        return int(result) or found.value

    def sum_once(self) -> int:
        """Runs one all-reduce, compares every element, and returns the communicator's error."""
        data = self.index * (self.rank + 1)
        torch.cuda.synchronize()
        pointer = ctypes.c_void_p(data.data_ptr())
        stream = ctypes.c_void_p(self.stream.cuda_stream)
        result = self.nccl.ncclAllReduce(
            pointer, pointer, ctypes.c_size_t(COUNT), INT32, SUM, self.comm, stream
        )
        if result != SUCCESS:
            return int(result)
        done = torch.cuda.Event()
        done.record(self.stream)
        while not done.query():
            error = self.error()
            if error not in (SUCCESS, IN_PROGRESS):
                return error
            time.sleep(0.001)
        wrong = int((data != self.index * (self.ranks * (self.ranks + 1) // 2)).sum())
        if wrong:
            say(event="wrong", elements=wrong)
        return SUCCESS

    def abort(self) -> None:
        self.nccl.ncclCommAbort(self.comm)
        self.comm = ctypes.c_void_p()


def main() -> None:
    folder, rank, ranks, generation = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    torch.cuda.set_device(rank)
    one = Rank(folder, rank, ranks)
    one.nccl.ncclCommInitRank.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        UniqueId,
        ctypes.c_int,
    ]
    while True:
        one.begin(generation)
        rounds, told = 0, time.monotonic()
        while (error := one.sum_once()) == SUCCESS:
            rounds += 1
            if time.monotonic() - told >= 1:
                told = time.monotonic()
                say(event="rounds", generation=generation, rounds=rounds)
        say(event="error", generation=generation, error=one.text(error))
        one.abort()
        generation += 1


if __name__ == "__main__":
    main()
