"""Moves a request's part of a paged KV cache from one process to another, layer by layer.

The processes stand for a prefill and a decode server. The blocks of one request are scattered over
a paged cache and go to other blocks of another cache. Each layer is one message, so that decoding
can begin with the first layer. The caches are arrays of NumPy, or of CuPy or PyTorch on a GPU (on
two GPUs if the host has them).
Run it: python -m examples.kv_cache --with cupy
"""

from transport.ground.interrupts import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()  # also while the packages below are imported

import multiprocessing
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
import numpy as np

from transport import Endpoint, WeftError
from transport.ground.workers import follow_parent, interrupts_held

SEED = 7
PATIENCE_S = 60.0


class Arrays:
    """The operations that differ between the array libraries."""

    def __init__(self, library: str, side: int) -> None:
        self.library = library
        if library == "cupy":
            import cupy

            cupy.cuda.Device(side % cupy.cuda.runtime.getDeviceCount()).use()
            self.make = cupy.asarray
        elif library == "torch":
            import torch

            if not torch.cuda.is_available():
                raise RuntimeError("PyTorch sees no GPU")
            device = f"cuda:{side % torch.cuda.device_count()}"
            self.make = lambda host: torch.from_numpy(host).to(device)
        else:
            self.make = np.array

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        """A copy of an array as a NumPy array."""
        if self.library == "cupy":
            return np.asarray(array.get())
        return np.asarray(array.cpu().numpy() if self.library == "torch" else array)


class Cache:
    """A KV cache: per layer an array [blocks, 2 (K, V), tokens per block, heads, head size]."""

    def __init__(self, arrays: Arrays, layers: int, blocks: int, seed: int | None) -> None:
        shape = (blocks, 2, 16, 8, 128)
        random = np.random.default_rng(seed)
        self.layers = [
            arrays.make(
                np.zeros(shape, np.float16)
                if seed is None
                else random.standard_normal(shape, np.float32).astype(np.float16)
            )
            for _ in range(layers)
        ]

    def pieces(self, layer: int, blocks: Sequence[int]) -> list[Any]:
        """Views of a request's blocks of a layer, which together are one message."""
        return [self.layers[layer][block] for block in blocks]


def blocks_of(request: int, count: int, blocks: int) -> list[int]:
    """The blocks of a request, at random places of the cache."""
    return list(np.random.default_rng(request).permutation(blocks)[:count])


def decode_main(*settings: Any) -> None:
    """The process that decodes; an error of weft ends it with one line."""
    follow_parent()
    try:
        decode(*settings)
    except WeftError as error:
        sys.exit(f"the decoding process: {error}")


def decode(pipe: Pipe, library: str, layers: int, blocks: int, count: int) -> None:
    """Receives every layer into blocks of its own cache; reports the number of wrong layers."""
    arrays = Arrays(library, 1)
    cache = Cache(arrays, layers, blocks, None)
    expected = Cache(Arrays("numpy", 0), layers, blocks, SEED)
    here, there = blocks_of(2, count, blocks), blocks_of(1, count, blocks)
    with Endpoint(interfaces="lo") as endpoint, endpoint.listen() as listener:
        pipe.send(listener.handle)
        with listener.accept(timeout_s=PATIENCE_S) as connection:
            handles = [connection.irecv_into(cache.pieces(layer, here)) for layer in range(layers)]
            connection.send(b"ready", timeout_s=PATIENCE_S)
            wrong = 0
            for layer, handle in enumerate(handles):
                handle.wait(PATIENCE_S)  # a server would decode this layer now
                got = arrays.host(cache.layers[layer])
                wrong += not np.array_equal(got[here], expected.layers[layer][there])
                others = np.delete(got, here, axis=0)
                wrong += bool(others.any())
            pipe.send(wrong)
            pipe.recv()


def prefill(pipe: Pipe, library: str, layers: int, blocks: int, count: int) -> tuple[float, int]:
    """Sends the request's blocks of every layer; returns seconds and the number of wrong layers."""
    cache = Cache(Arrays(library, 0), layers, blocks, SEED)
    chosen = blocks_of(1, count, blocks)
    with (
        Endpoint(interfaces="lo") as endpoint,
        endpoint.connect(pipe.recv()) as connection,
    ):
        connection.recv(8, timeout_s=PATIENCE_S)
        begin = time.perf_counter()
        handles = [connection.isend(cache.pieces(layer, chosen)) for layer in range(layers)]
        for handle in handles:
            handle.wait(PATIENCE_S)
        seconds = time.perf_counter() - begin
        wrong = pipe.recv()
        pipe.send("over")
    return seconds, wrong


@click.command()
@click.option(
    "--with",
    "library",
    type=click.Choice(["numpy", "cupy", "torch"]),
    default="numpy",
    show_default=True,
    help="Library whose arrays hold the cache.",
)
@click.option("--layers", default=32, show_default=True)
@click.option("--blocks", default=64, show_default=True, help="Blocks in a cache, 64 KiB each.")
@click.option("--moved", default=24, show_default=True, help="Blocks of the request.")
def main(library: str, layers: int, blocks: int, moved: int) -> None:
    """Moves a request's part of a paged KV cache to another process and compares every byte."""
    if not 0 < moved <= blocks:
        raise click.BadParameter(f"must be from 1 to --blocks ({blocks})", param_hint="--moved")
    try:
        Arrays(library, 0)
    except Exception as error:  # no package or no GPU: each library raises its own exception
        remedy = ": pip install cupy-cuda13x" if isinstance(error, ImportError) else ""
        raise click.ClickException(f"--with {library}: {error}{remedy}") from None
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=decode_main, args=(theirs, library, layers, blocks, moved))
    with interrupts_held():
        process.start()
    theirs.close()
    try:
        seconds, wrong = prefill(ours, library, layers, blocks, moved)
        process.join(PATIENCE_S)
    except EOFError:
        raise click.ClickException("the decoding process failed: see its error above") from None
    except WeftError as error:
        raise click.ClickException(str(error)) from None
    finally:
        process.kill()
    nbytes = layers * moved * 2 * 16 * 8 * 128 * 2
    click.echo(
        f"{layers} layers, {moved} blocks each: {nbytes / 1e6:.1f} MB in {seconds * 1e3:.1f} ms, "
        f"{nbytes / seconds / 1e9:.2f} GB/s, {wrong} layers wrong"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
