"""Measures NCCL's send and receive between two GPUs, over its Socket transport and over weft.

Each GPU has a rank in its own process, with PyTorch.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import click

from transport import native

SOCKET, WEFT = "NCCL Socket send/recv", "NCCL weft send/recv"
PATIENCE_S = 110.0
ROUND_BYTES, IN_FLIGHT = 2 << 30, 64
# Makes NCCL use its network, as between hosts.
NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
ENVIRONMENTS = {
    SOCKET: {
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "4",
    },
    WEFT: {
        "NCCL_NET": "weft",
        "NCCL_NET_PLUGIN": str(native.PLUGIN_PATH),
        "NCCL_NET_PLUGIN_REF_COUNT": "1",  # as `weft run` sets it
        "NCCL_SOCKET_IFNAME": "lo",
        "WEFT_INTERFACES": "lo",
    },
}


def measure_nccl(name: str, sizes: tuple[int, ...], seed: int) -> list[dict[str, float]]:
    """The receiver's rate in GB/s for each size, after a warm-up message."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.lib.gpu_nccl", str(rank), str(seed), *map(str, sizes)],
            env=os.environ | NETWORK | ENVIRONMENTS[name] | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        if rank.returncode != 0:
            last = errors.strip().splitlines()[-1:]
            raise click.ClickException(f"{name}: its ranks failed: {' '.join(last)}")
    rows: list[dict[str, float]] = json.loads(outputs[1][0].splitlines()[-1])
    return rows


def rank_main(rank: int, seed: int, sizes: list[int]) -> None:
    """Sends messages on rank 0, or receives and compares them on rank 1."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    rows = []
    for size_bytes in sizes:
        count = max(min(ROUND_BYTES // size_bytes, IN_FLIGHT), 2)
        expected = [
            torch.randint(
                0,
                256,
                (size_bytes,),
                dtype=torch.uint8,
                device="cuda",
                generator=torch.Generator("cuda").manual_seed(seed + i),
            )
            for i in range(count)
        ]
        places = expected if rank == 0 else [torch.zeros_like(one) for one in expected]
        move = dist.send if rank == 0 else dist.recv
        move(places[0], 1 - rank)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for place in places:
            move(place, 1 - rank)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        wrong = sum(
            not torch.equal(one, place) for one, place in zip(expected, places, strict=True)
        )
        rate = count * size_bytes / seconds / 1e9
        rows.append({"size_bytes": size_bytes, "gbytes_per_s": rate, "wrong": wrong})
    print(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), int(sys.argv[2]), [int(size) for size in sys.argv[3:]])
