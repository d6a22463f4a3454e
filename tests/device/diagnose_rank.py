"""One rank of diagnose_faults.py: trains until its time is over; FAULT_RANK, or "all", has a fault.

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
PERIODIC_S, PERIOD = 0.06, 4  # late in every fourth iteration
WORK_TIMES = 6
GPT2_WORK_TIMES = 24  # the first 15 ms hide behind the CPU, which launches thousands of kernels
TOKENS, SEQUENCES = 512, 4


class Fault:
    """The fault of this rank, from an iteration on; empty name: none."""

    def __init__(self) -> None:
        is_mine = os.environ["FAULT_RANK"] in (os.environ["RANK"], "all")
        self.name = os.environ["FAULT"] if is_mine else ""
        self.at = int(os.environ["FAULT_AT"])
        self.work_times = WORK_TIMES
        self.iteration = 0

    def begins(self, name: str) -> bool:
        return self.name == name and self.iteration >= self.at

    def in_one_collective(self, *_: Any) -> None:
        """Comes late to a collective in the middle of a step; a hook of a layer."""
        if self.begins("late in one collective"):
            time.sleep(LATE_S)

    def before_a_step(self, torch: Any, dist: Any, square: Any) -> None:
        if self.begins("straggler"):
            for _ in range(self.work_times):
                square @ square
        if self.begins("late calls") or self.begins("all late"):
            time.sleep(LATE_S)
        if self.begins("periodic") and self.iteration % PERIOD == 0:
            time.sleep(PERIODIC_S)
        if self.begins("absent"):
            time.sleep(3600)
        if self.begins("wrong call"):
            dist.all_reduce(torch.ones(12_345, device=square.device))


def gpt2(torch: Any, device: Any, kind: str, fault: Fault) -> Callable[[], None]:
    """One step of training GPT-2 of 124 million parameters, as DDP or FSDP."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    torch.manual_seed(1)
    fault.work_times = GPT2_WORK_TIMES
    inner = GPT2LMHeadModel(GPT2Config()).to(device)
    middle = inner.transformer.h[6]
    if kind == "gpt2-fsdp":
        from functools import partial

        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        middle.register_forward_pre_hook(fault.in_one_collective)
        wrap = partial(transformer_auto_wrap_policy, transformer_layer_cls={GPT2Block})
        model = FullyShardedDataParallel(inner, device_id=device, auto_wrap_policy=wrap)
    else:
        middle.register_full_backward_hook(fault.in_one_collective)
        model = torch.nn.parallel.DistributedDataParallel(inner, device_ids=[device])
    tokens = torch.randint(0, 50_000, (SEQUENCES, TOKENS), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


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


def step_of(torch: Any, dist: Any, device: Any, kind: str, fault: Fault) -> Callable[[], None]:
    if kind == "pipeline":
        return pipeline(torch, dist, device)
    if kind.startswith("gpt2-"):
        return gpt2(torch, device, kind, fault)
    return trainer(torch, dist, device, kind)


def run(torch: Any, dist: Any, device: Any, kind: str, seconds: float) -> None:
    fault = Fault()
    step = step_of(torch, dist, device, kind, fault)
    square = torch.randn(4096, 4096, device=device)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fault.iteration == fault.at:
            print("FAULTY", flush=True)
        fault.before_a_step(torch, dist, square)
        step()
        time.sleep(0.01)
        fault.iteration += 1
        if fault.iteration == 20:
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
