"""Runs one rank of trace_checks.py: a list of collectives, or training with PyTorch's profiler.

Prints a line "RESULT {json}" with what the rank found: wrong elements, and in training the NCCL
kernels that ran.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

CALLS = 3
ELEMENTS = 3 << 20  # float32; divisible by the chunks of two and of four ranks


def collectives(torch: Any, dist: Any, device: Any) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = torch.full((ELEMENTS,), float(rank + 1), device=device)
    part = torch.empty(ELEMENTS // ranks, device=device)
    out = torch.empty_like(data)
    total = ranks * (ranks + 1) / 2
    wrong = 0
    for _ in range(CALLS):
        each = data.clone()
        dist.all_reduce(each)
        wrong += int((each != total).sum())
        part.fill_(rank + 1)
        dist.all_gather_into_tensor(out, part)
        wrong += int((out[:: ELEMENTS // ranks] != torch.arange(1, ranks + 1, device=device)).sum())
        dist.reduce_scatter_tensor(part, data)
        wrong += int((part != total).sum())
        each = data.clone()
        dist.broadcast(each, src=0)
        wrong += int((each != 1).sum())
        each = data.clone()
        dist.reduce(each, dst=0)
        wrong += int((each != total).sum()) if rank == 0 else 0
        dist.all_to_all_single(out, data)
        wrong += int((out[:: ELEMENTS // ranks] != torch.arange(1, ranks + 1, device=device)).sum())
        if rank == 0:
            dist.send(data, dst=1)
        elif rank == 1:
            dist.recv(out, src=0)
            wrong += int((out != 1).sum())
    torch.cuda.synchronize()
    return {"wrong": wrong}


def model_of(torch: Any, name: str) -> tuple[Any, Any]:
    """A model and its input for one step: sizes as published, data random."""
    nn = torch.nn
    if name == "resnet18":
        import torchvision  # type: ignore[import-not-found]

        return torchvision.models.resnet18(), torch.randn(16, 3, 224, 224)
    width, layers, heads = {"bert": (768, 12, 12), "gpt2": (768, 12, 12)}[name]
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, layers), nn.Linear(width, 30_522 if name == "bert" else 50_257)
    )
    return model, torch.randn(4, 128, width)


def train(torch: Any, dist: Any, device: Any, name: str) -> dict[str, Any]:
    """Trains five steps; the profiler also sees the operations that distribute the model."""
    torch.manual_seed(1)
    kind, _, wrap = name.partition("-")
    model, data = model_of(torch, kind)
    model, data = model.to(device), data.to(device)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        dist.barrier()
        if wrap == "fsdp":
            from torch.distributed.fsdp import FullyShardedDataParallel

            model = FullyShardedDataParallel(model, device_id=device)
        else:
            model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            model(data).float().square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
    kernels: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and "ncclDevKernel_" in event.name:
            kernels[event.name.split("ncclDevKernel_")[1].split("_")[0]] += 1
    return {"kernels": dict(kernels), "wrong": 0}


def pipeline(torch: Any, dist: Any, device: Any) -> dict[str, Any]:
    """Runs a pipeline of two stages: activations forward, gradients back, for 8 micro-batches."""
    rank = dist.get_rank()
    layer = torch.nn.Linear(1024, 1024).to(device)
    for _ in range(8):
        if rank == 0:
            out = layer(torch.randn(64, 1024, device=device))
            dist.send(out.detach(), dst=1)
            grad = torch.empty_like(out)
            dist.recv(grad, src=1)
            out.backward(grad)
        else:
            data = torch.empty(64, 1024, device=device, requires_grad=True)
            dist.recv(data.data, src=0)
            layer(data).square().mean().backward()
            dist.send(data.grad, dst=0)
    torch.cuda.synchronize()
    return {"kernels": {"SendRecv": 16}, "wrong": 0}


def main() -> None:
    import torch
    import torch.distributed as dist

    task = sys.argv[1]
    device = torch.device("cuda", int(os.environ["CHECK_GPU"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if task == "collectives":
        found = collectives(torch, dist, device)
    elif task == "pipeline":
        found = pipeline(torch, dist, device)
    else:
        found = train(torch, dist, device, task)
    dist.destroy_process_group()
    print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
