"""One rank of diagnose_faults.py: trains until its time is over; the rank FAULT_RANK has a fault.

Every rank prints "RUNNING" when the first iterations are done, and "FAULTY" at the iteration
FAULT_AT, at which the fault begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

WIDTH = 2048
LATE_S = 0.05
WORK_TIMES = 6


class Fault:
    """The fault of this rank, from an iteration on; empty name: none."""

    def __init__(self) -> None:
        is_mine = os.environ["RANK"] == os.environ["FAULT_RANK"]
        self.name = os.environ["FAULT"] if is_mine else ""
        self.at = int(os.environ["FAULT_AT"])

    def begins(self, iteration: int, name: str) -> bool:
        return self.name == name and iteration >= self.at


def trainer(torch: Any, dist: Any, device: Any, kind: str) -> Callable[[], None]:
    """One step of training; data parallel, or sharded."""
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    model = torch.nn.Sequential(*layers).to(device)
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=device)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    data = torch.randn(256, WIDTH, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def pipeline(torch: Any, dist: Any, device: Any) -> Callable[[], None]:
    """One step of a pipeline: a stage per rank, four microbatches forward, gradients back."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = torch.nn.Linear(WIDTH, WIDTH).to(device)

    def step() -> None:
        for _ in range(4):
            data = torch.randn(256, WIDTH, device=device, requires_grad=True)
            if rank > 0:
                dist.recv(data.data, src=rank - 1)
            out = layer(data)
            grad = torch.ones_like(out)
            if rank + 1 < ranks:
                dist.send(out.detach(), dst=rank + 1)
                dist.recv(grad, src=rank + 1)
            out.backward(grad)
            if rank > 0:
                dist.send(data.grad, dst=rank - 1)
        dist.all_reduce(layer.bias.grad)
        torch.cuda.synchronize()

    return step


def run(torch: Any, dist: Any, device: Any, kind: str, seconds: float) -> None:
    step = (
        pipeline(torch, dist, device) if kind == "pipeline" else trainer(torch, dist, device, kind)
    )
    fault = Fault()
    square = torch.randn(4096, 4096, device=device)
    end = time.monotonic() + seconds
    iteration = 0
    while time.monotonic() < end:
        if iteration == fault.at:
            print("FAULTY", flush=True)
        if fault.begins(iteration, "straggler"):
            for _ in range(WORK_TIMES):
                square @ square
        if fault.begins(iteration, "late calls"):
            time.sleep(LATE_S)
        if fault.begins(iteration, "absent"):
            time.sleep(3600)
        if fault.begins(iteration, "wrong call"):
            dist.all_reduce(torch.ones(12_345, device=device))
        step()
        time.sleep(0.01)
        iteration += 1
        if iteration == 20:
            print("RUNNING", flush=True)


def main() -> None:
    import torch
    import torch.distributed as dist

    kind, seconds = sys.argv[1], float(sys.argv[2])
    device = torch.device("cuda", int(os.environ["CHECK_GPU"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    run(torch, dist, device, kind, seconds)
    os._exit(0)  # without teardown, as ranks end at different iterations


if __name__ == "__main__":
    main()
