"""One rank of liveness.py under PyTorch: DDP steps, each followed by an exact all-reduce.

It prints events as JSON lines. After an error it makes a new process group.
"""

import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.device.liveness_rank import say

WIDTH = 2048  # three layers of this width have 50 MB of gradients
COUNT = 2 << 20  # number of int32 elements: 8 MB
GROUP_LIMIT = timedelta(minutes=10)


class Job:
    """A process group, a model trained over it, and the buffer of its all-reduces."""

    def __init__(self, folder: Path, rank: int, ranks: int, generation: int) -> None:
        self.rank, self.ranks, self.generation = rank, ranks, generation
        store = dist.FileStore(str(folder / f"store-{generation}"), ranks)
        dist.init_process_group(
            "nccl", store=store, rank=rank, world_size=ranks, timeout=GROUP_LIMIT
        )
        torch.manual_seed(generation)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        model = torch.nn.Sequential(*layers).to("cuda")
        self.model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.index = torch.arange(COUNT, dtype=torch.int32, device="cuda") % 1_000_003
        say(event="group", generation=generation)

    def step(self, number: int) -> None:
        """Trains on this rank's data; checks an all-reduce and, every 20th step, the model."""
        data = torch.full((16, WIDTH), (number % 97 + self.rank) / 97, device="cuda")
        self.optimizer.zero_grad()
        self.model(data).square().mean().backward()
        self.optimizer.step()
        total = self.index * (self.rank + 1)
        dist.all_reduce(total, async_op=True).wait()  # makes this thread wait, not only the stream
        wrong = int((total != self.index * (self.ranks * (self.ranks + 1) // 2)).sum())
        if number % 20 == 0:
            wrong += self._models_differ()
        if wrong:
            say(event="wrong", elements=wrong)

    def _models_differ(self) -> int:
        """The number of parameters that differ from those of rank 0 in any bit."""
        mine = torch.cat([one.detach().flatten() for one in self.model.parameters()])
        first = mine.clone()
        dist.broadcast(first, src=0, async_op=True).wait()
        return int((mine.view(torch.int32) != first.view(torch.int32)).sum())

    def run(self) -> str:
        """Runs steps until an error occurs, and returns the text of the error."""
        rounds, told = 0, time.monotonic()
        try:
            while True:
                self.step(rounds)
                rounds += 1
                if time.monotonic() - told >= 1:
                    told = time.monotonic()
                    say(event="rounds", generation=self.generation, rounds=rounds)
        except dist.DistError as error:
            return str(error)

    def abort(self) -> None:
        distributed_c10d._abort_process_group()


def main() -> None:
    # With this, wait() checks for errors on the CPU, and no watchdog thread ends the process.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    faulthandler.register(signal.SIGUSR1)
    folder, rank, ranks, generation = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    torch.cuda.set_device(rank)
    while True:
        job = Job(folder, rank, ranks, generation)
        error = job.run()
        say(event="error", generation=generation, error=error)
        job.abort()
        generation += 1


if __name__ == "__main__":
    main()
