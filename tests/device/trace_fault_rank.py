"""Runs one rank of trace_faults.py. Prints a line "RESULT {json}" with what the rank found."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from typing import Any

ELEMENTS = 1 << 20
REPLAYS = 5


def ready(torch: Any, dist: Any, device: Any) -> Any:
    dist.init_process_group("nccl", device_id=device, timeout=datetime.timedelta(seconds=60))
    data = torch.ones(ELEMENTS, device=device)
    dist.all_reduce(data)
    torch.cuda.synchronize()
    return data


def abort(torch: Any, dist: Any, device: Any) -> dict[str, Any]:
    """Rank 0 begins an all-reduce that rank 1 never joins, and aborts the communicator."""
    data = ready(torch, dist, device)
    if dist.get_rank() == 0:
        dist.all_reduce(data)
    time.sleep(1)
    dist.distributed_c10d._abort_process_group()
    # A second communicator of the same processes works and is traced.
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    data = ready(torch, dist, device)
    dist.destroy_process_group()
    return {"sum": float(data[0])}


def split(torch: Any, dist: Any, device: Any) -> dict[str, Any]:
    """A named group made by splitting the communicator, and one without the last rank."""
    data = ready(torch, dist, device)
    pairs = [dist.new_group([2 * i, 2 * i + 1], group_desc=f"pair {i}") for i in range(2)]
    mine = pairs[dist.get_rank() // 2]
    for _ in range(3):
        dist.all_reduce(data, group=mine)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"shrunk": "no shrink_group in this PyTorch"}
    if hasattr(dist, "shrink_group") and os.environ.get("CHECK_SHRINK"):
        last = dist.get_world_size() - 1
        dist.barrier()
        if dist.get_rank() == last:
            found["shrunk"] = "left out"
        else:
            dist.shrink_group([last])
            dist.all_reduce(data)
            torch.cuda.synchronize()
            found["shrunk"] = dist.get_world_size()
        return found
    dist.destroy_process_group()
    return found


def graph(torch: Any, dist: Any, device: Any) -> dict[str, Any]:
    """An all-reduce that is captured once in a CUDA graph and replayed."""
    data = ready(torch, dist, device)
    data.fill_(1)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(data)
    for _ in range(REPLAYS):
        captured.replay()
    torch.cuda.synchronize()
    found = {"sum": float(data[0])}
    del captured
    dist.destroy_process_group()
    return found


def endless(torch: Any, dist: Any, device: Any) -> dict[str, Any]:
    """All-reduces until the process is killed."""
    data = ready(torch, dist, device)
    print("RUNNING", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        dist.all_reduce(data)
        torch.cuda.synchronize()
    return {}


def main() -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["CHECK_GPU"]))
    torch.cuda.set_device(device)
    tasks = {"abort": abort, "split": split, "graph": graph, "endless": endless}
    found = tasks[sys.argv[1]](torch, dist, device)
    print("RESULT", json.dumps(found), flush=True)
    if sys.argv[1] == "split":
        os._exit(0)  # without teardown, as its ranks do not end a shrunk communicator together


if __name__ == "__main__":
    main()
