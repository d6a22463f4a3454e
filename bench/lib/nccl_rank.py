"""Runs one rank of `bench nccl`: timed collectives with exact results, or steps of training.

The environment, which the parent sets, selects the network.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

STEPS = 200
BATCH, WIDTH = 64, 512


def check_all_reduce(torch: Any, device: Any, dist: Any, count: int) -> int:
    """Number of wrong elements of an all-reduce in which every element differs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    index = torch.arange(count, dtype=torch.int32, device=device) % 1_000_003
    data = index * (rank + 1)
    dist.all_reduce(data)
    return int((data != index * (ranks * (ranks + 1) // 2)).sum())


def check_all_to_all(torch: Any, device: Any, dist: Any, count: int) -> int:
    """Number of wrong elements of an all-to-all; each encodes source, target and index."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = count // ranks
    place = torch.arange(each, dtype=torch.int32, device=device) % 1_000_003
    data = torch.cat([place + (rank * ranks + to) * 1_000_003 for to in range(ranks)])
    out = torch.empty_like(data)
    dist.all_to_all_single(out, data)
    want = torch.cat([place + (of * ranks + rank) * 1_000_003 for of in range(ranks)])
    return int((out != want).sum())


def check_all_gather(torch: Any, device: Any, dist: Any, count: int) -> int:
    """Number of wrong elements of an all-gather; each encodes its part i and its index in it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    place = torch.arange(count // ranks, dtype=torch.int32, device=device) % 1_000_003
    out = torch.empty(count, dtype=torch.int32, device=device)
    dist.all_gather_into_tensor(out, place + rank * 1_000_003)
    want = torch.cat([place + of * 1_000_003 for of in range(ranks)])
    return int((out != want).sum())


def check_reduce_scatter(torch: Any, device: Any, dist: Any, count: int) -> int:
    """Number of wrong elements of a reduce-scatter in which every element differs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = count // ranks
    index = torch.arange(count, dtype=torch.int32, device=device) % 1_000_003
    out = torch.empty(each, dtype=torch.int32, device=device)
    dist.reduce_scatter_tensor(out, index * (rank + 1))
    want = index[rank * each : (rank + 1) * each] * (ranks * (ranks + 1) // 2)
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


def calls(torch: Any, dist: Any, device: Any, count: int) -> dict[str, tuple[Any, Any]]:
    """Operation -> its call, on buffers of its own, and its check."""
    data = torch.ones(count, dtype=torch.int32, device=device)
    out = torch.empty_like(data)
    part = torch.ones(count // dist.get_world_size(), dtype=torch.int32, device=device)
    return {
        "all_reduce": (lambda: dist.all_reduce(data), check_all_reduce),
        "all_to_all": (lambda: dist.all_to_all_single(out, data), check_all_to_all),
        "all_gather": (lambda: dist.all_gather_into_tensor(out, part), check_all_gather),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, data), check_reduce_scatter),
    }


def collectives(torch: Any, dist: Any, device: Any, task: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each operation and size; sizes are of the whole buffer, as in nccl-tests.

    The task chooses `operations` and may choose, by size, the number of `calls`.
    """
    ranks = dist.get_world_size()
    rows = []
    for size in task["sizes"]:
        count = max(size // 4 // ranks, 1) * ranks
        usual = max(3, min(4_000, (256 << 20) // (count * 4)))
        iterations = task.get("calls", {}).get(str(size), usual)
        known = calls(torch, dist, device, count)
        for name in task["operations"]:
            call, check = known[name]
            wrong = check(torch, device, dist, count)
            took, cost = timed(torch, call, iterations)
            wrong += check(torch, device, dist, count)
            algbw = count * 4 / took / 1e9
            row = {"operation": name, "size_bytes": count * 4, "time_us": took * 1e6}
            row["calls"] = iterations
            rows.append(row | {"algbw": algbw, "wrong": wrong} | cost)
    return rows


def wrapped(torch: Any, device: Any, module: Any, kind: str) -> Any:
    """The module, data parallel (ddp) or sharded (fsdp)."""
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(module, device_ids=[device])
    from torch.distributed.fsdp import FullyShardedDataParallel

    for at, layer in enumerate(module):
        if isinstance(layer, torch.nn.Linear):
            module[at] = FullyShardedDataParallel(layer, device_id=device)
    return FullyShardedDataParallel(module, device_id=device)


def train(torch: Any, device: Any, kind: str) -> dict[str, Any]:
    """Trains a small model; returns its losses as bits of float32, and the time of a step."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).to(device)
    model = wrapped(torch, device, module, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    source = torch.Generator(device="cpu").manual_seed(100 + torch.distributed.get_rank())
    bits, times = [], []
    for _ in range(STEPS):
        batch = torch.randn(BATCH, WIDTH, generator=source).to(device)
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
    device = torch.device("cuda", int(os.environ["BENCH_GPU"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if task["train"]:
        found: Any = train(torch, device, task["train"])
    else:
        found = collectives(torch, dist, device, task)
    version = ".".join(map(str, torch.cuda.nccl.version()))
    facts = {"torch": torch.__version__, "nccl": version, "gpu": torch.cuda.get_device_name(device)}
    dist.destroy_process_group()
    if rank == 0 or task["train"]:
        print("RESULT " + json.dumps({"found": found, "facts": facts}), flush=True)


if __name__ == "__main__":
    main()
