"""Runs one rank of `bench nccl`: timed collectives with exact results, or a few DDP steps.

The environment, which the parent sets, selects the network.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

DDP_STEPS = 200
DDP_BATCH, DDP_WIDTH = 64, 512


def check_all_reduce(torch: Any, device: Any, dist: Any, count: int) -> int:
    """Number of wrong elements of an all-reduce in which every element differs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    index = torch.arange(count, dtype=torch.int32, device=device) % 1_000_003
    data = index * (rank + 1)
    dist.all_reduce(data)
    return int((data != index * (ranks * (ranks + 1) // 2)).sum())


def check_all_to_all(torch: Any, device: Any, dist: Any, count: int) -> int:
    """Number of wrong elements of an all-to-all; part j of rank i holds i, j and the index."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = count // ranks
    place = torch.arange(each, dtype=torch.int32, device=device) % 1_000_003
    data = torch.cat([place + (rank * ranks + to) * 1_000_003 for to in range(ranks)])
    out = torch.empty_like(data)
    dist.all_to_all_single(out, data)
    want = torch.cat([place + (of * ranks + rank) * 1_000_003 for of in range(ranks)])
    return int((out != want).sum())


def busy_s() -> float:
    """Busy processor seconds of the whole machine, interrupts included."""
    with open("/proc/stat") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def timed(torch: Any, call: Any, iterations: int) -> tuple[float, dict[str, float]]:
    """Mean seconds of a call after a warm-up, and the processor use during the calls."""
    for _ in range(min(iterations, 3)):
        call()
    torch.cuda.synchronize()
    begin, mine_s, machine_s = time.perf_counter(), time.process_time(), busy_s()
    for _ in range(iterations):
        call()
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    rank_cores, machine_cores = time.process_time() - mine_s, busy_s() - machine_s
    cost = {"rank_cores": rank_cores / took, "machine_cores": machine_cores / took}
    return took / iterations, cost


def collectives(torch: Any, dist: Any, device: Any, task: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each operation and size; sizes are of the whole buffer, as in nccl-tests.

    The task may choose `operations` and, by size, the number of `calls`.
    """
    ranks = dist.get_world_size()
    rows = []
    for size in task["sizes"]:
        count = max(size // 4 // ranks, 1) * ranks
        data = torch.ones(count, dtype=torch.int32, device=device)
        out = torch.empty_like(data)
        usual = max(3, min(50, (256 << 20) // (count * 4)))
        iterations = task.get("calls", {}).get(str(size), usual)
        calls = {
            "all_reduce": (lambda data=data: dist.all_reduce(data), check_all_reduce),
            "all_to_all": (
                lambda out=out, data=data: dist.all_to_all_single(out, data),
                check_all_to_all,
            ),
        }
        for name in task.get("operations", calls):
            call, check = calls[name]
            wrong = check(torch, device, dist, count)
            took, cost = timed(torch, call, iterations)
            wrong += check(torch, device, dist, count)
            factor = 2 * (ranks - 1) / ranks if name == "all_reduce" else (ranks - 1) / ranks
            algbw = count * 4 / took / 1e9
            row = {"operation": name, "size_bytes": count * 4, "time_us": took * 1e6}
            rows.append(row | {"algbw": algbw, "busbw": algbw * factor, "wrong": wrong} | cost)
    return rows


def ddp(torch: Any, device: Any) -> dict[str, Any]:
    """Trains a small model; returns its losses as bits of float32, and the time of a step."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(DDP_WIDTH, DDP_WIDTH), torch.nn.GELU()] * 1
    for _ in range(3):
        layers += [torch.nn.Linear(DDP_WIDTH, DDP_WIDTH), torch.nn.GELU()]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers, torch.nn.Linear(DDP_WIDTH, 1)).to(device),
        device_ids=[device],
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    source = torch.Generator(device="cpu").manual_seed(100 + torch.distributed.get_rank())
    bits, times = [], []
    for _ in range(DDP_STEPS):
        batch = torch.randn(DDP_BATCH, DDP_WIDTH, generator=source).to(device)
        begin = time.perf_counter()
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bits.append(int(loss.detach().view(torch.int32)))
        times.append(time.perf_counter() - begin)
    return {"loss_bits": bits, "step_ms": statistics.median(times) * 1e3}


def main() -> None:
    import torch
    import torch.distributed as dist

    task = json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if task["ddp"]:
        found: Any = ddp(torch, device)
    else:
        found = collectives(torch, dist, device, task)
    version = ".".join(map(str, torch.cuda.nccl.version()))
    facts = {"torch": torch.__version__, "nccl": version, "gpu": torch.cuda.get_device_name(device)}
    dist.destroy_process_group()
    if rank == 0 or task["ddp"]:
        print("RESULT " + json.dumps({"found": found, "facts": facts}), flush=True)


if __name__ == "__main__":
    main()
