"""Lets PyTorch's Flight Recorder write its dumps of a hang, on a machine with a GPU.

Two ranks share the GPU; rank 1 leaves out the third AllReduce and sleeps. The watchdog of rank 0
then finds a timeout, and both ranks write dumps. Run it as python -m tests.device.flight_recorder
OUT; the dumps are then in OUT, for weft trace import flight.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

RANKS, TIMEOUT_S, WAIT_S = 2, 20, 150


def forget_to_call() -> None:
    """Stands where a program would look for its data, to be seen in the stack."""
    time.sleep(WAIT_S)


def rank_of_the_job(rank: int) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group(
        "nccl",
        init_method="tcp://127.0.0.1:29511",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    one = torch.ones(1 << 20, device="cuda")
    for _ in range(2):
        dist.all_reduce(one)
        torch.cuda.synchronize()
    if rank == 1:
        forget_to_call()
    dist.all_reduce(one)
    torch.cuda.synchronize()


def main(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    variables = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(out / "nccl_trace_rank_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(out / "nccl_trace_rank_"),
        "NCCL_DEBUG": "WARN",
    }
    children = []
    for rank in range(RANKS):
        log = (out / f"log_{rank}.txt").open("w")
        own = variables | {"NCCL_HOSTID": f"host{rank}", "NCCL_DEBUG_FILE": ""}
        words = [sys.executable, "-m", "tests.device.flight_recorder", "--rank", str(rank)]
        children.append(
            subprocess.Popen(words, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT)
        )
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s and any(one.poll() is None for one in children):
        time.sleep(1)
    for one in children:
        if one.poll() is None:
            one.kill()
        one.wait()
    dumps = sorted(out.glob("nccl_trace_rank_*"))
    for dump in dumps:
        with dump.open("rb") as file:  # written by this program's own children
            found = pickle.load(file)
        (out / f"{dump.name}.json").write_text(json.dumps(found, default=str))
    print([one.name for one in dumps])
    return 0 if dumps else 1


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_of_the_job(int(sys.argv[2]))
    else:
        sys.exit(main(Path(sys.argv[1])))
