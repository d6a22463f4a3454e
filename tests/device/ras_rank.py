"""One rank of ras_states.py: calls AllReduce and Broadcast until it is ended.

FAULT=skips: rank FAULT_RANK leaves out AllReduce number FAULT_AT, and sleeps. Prints RUNNING after
the first step, and FAULTY when the fault begins.
"""

from __future__ import annotations

import os
import time

LASTS_S = 600
SYNCHRONIZED = 10  # steps; a program that never waits for its GPU is soon far ahead of it


def main() -> None:
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    at = int(os.environ["FAULT_AT"])
    skips = os.environ["FAULT"] == "skips" and rank == int(os.environ["FAULT_RANK"])
    torch.cuda.set_device(int(os.environ["CHECK_GPU"]))
    dist.init_process_group("nccl")
    groups = [dist.new_group(list(range(one, ranks, 2))) for one in range(2)]
    large, small = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 12, device="cuda")
    end_s = time.monotonic() + LASTS_S
    step = 0
    while time.monotonic() < end_s:
        step += 1
        if step == at:
            print("FAULTY", flush=True)
            if skips:
                time.sleep(LASTS_S)
        dist.all_reduce(large)
        dist.broadcast(small, src=rank % 2, group=groups[rank % 2])
        if step % SYNCHRONIZED == 0 or step == 1:
            torch.cuda.synchronize()
        if step == 1:
            print("RUNNING", flush=True)
        time.sleep(0.002)


if __name__ == "__main__":
    main()
