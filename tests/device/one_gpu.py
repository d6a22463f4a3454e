"""Tests that NCCL loads the given plugin and that all-reduces of two ranks on one GPU are exact.

NCCL refuses two ranks on one GPU of one host, so each rank sets another host id (NCCL_HOSTID).
Usage: python -m tests.device.one_gpu PLUGIN.so
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS, ELEMENTS = 50, 16 << 20


def rank_main(rank: int, plugin: str) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_NET_PLUGIN": plugin,
        "NCCL_SOCKET_IFNAME": "lo",
        "WEFT_INTERFACES": "lo",
        "WEFT_LOCAL": "off",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"/tmp/nccl-{rank}.log",
    }
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    data = torch.empty(ELEMENTS, dtype=torch.int32, device="cuda")
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        data.fill_(turn + rank)
        dist.all_reduce(data)
        assert bool((data == 2 * turn + 1).all()), f"a wrong sum in round {turn}"
    seconds = time.perf_counter() - begin
    if rank == 0:
        moved = ROUNDS * ELEMENTS * 4 / 1e9
        print(f"{ROUNDS} sums of {ELEMENTS * 4 >> 20} MB exact, {moved / seconds:.2f} GB/s")
    dist.destroy_process_group()


def main() -> None:
    plugin = str(Path(sys.argv[1]).resolve())
    mp.spawn(rank_main, args=(plugin,), nprocs=2)
    said = Path("/tmp/nccl-0.log").read_text()
    chosen = [line for line in said.splitlines() if "weft" in line.lower()]
    print("\n".join(chosen[:12]))
    print("NCCL", torch.cuda.nccl.version(), torch.cuda.get_device_name(0))
    assert any("Using network weft" in line for line in chosen), "NCCL took another network"


if __name__ == "__main__":
    main()
