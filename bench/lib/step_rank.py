"""Runs one rank of `bench step`: steps of training of GPT-2 models, alone or with other ranks.

The environment, which the parent sets, selects the network. Prints rows as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.lib.step_model import Marks, gpt, marked_step

WARM_UP = 5
BESIDE_STEPS = 4  # steps while the ranks communicate all the time
# Time of an AllReduce that runs beside steps: so long that all of them fit into a stream's queue.
BESIDE_NS = 20e6
ALONE_NS = 5e8  # total time of the operations that are timed alone
# AllReduces launched beside the steps: their time alone / the steps' time alone, first and at most.
BESIDE_TIMES, BESIDE_TIMES_MAX = 2.0, 8.0
SETS = 3  # number of sets of steps; each set is timed as a whole
SET_S = 1.0
STEPS_MIN, STEPS_MAX = 3, 50
MARKED_STEPS = 15
LEARNING_RATE = 1e-4

Row = dict[str, Any]


class Trainer:
    """A model with its optimizer and data. wrap: makes it data parallel; None: this GPU alone."""

    def __init__(self, torch: Any, device: Any, sizes: Row, wrap: Any) -> None:
        torch.manual_seed(1)
        with torch.device(device):
            self.model = gpt(torch, sizes).to(torch.bfloat16)
        self.called = self.model if wrap is None else wrap(self.model)
        self.optimizer = torch.optim.AdamW(self.called.parameters(), LEARNING_RATE, fused=True)
        shape = sizes["micro_batch"], sizes["sequence"] + 1
        ids = torch.randint(sizes["vocabulary"], shape, device=device)
        self.tokens, self.targets = ids[:, :-1], ids[:, 1:].contiguous()
        self.loss: Any = None

    def forward(self) -> Any:
        self.loss = self.called(self.tokens, self.targets)
        return self.loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.forward().backward()
        self.update()


def wrapper(torch: Any, device: Any, parallel: str, bucket_mb: int) -> Any:
    """A function that makes a model data parallel (ddp) or sharded (fsdp); None: alone."""
    if parallel == "alone":
        return None
    if parallel == "ddp":
        ddp = torch.nn.parallel.DistributedDataParallel
        return lambda model: ddp(
            model, device_ids=[device], bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
    from torch.distributed.fsdp import fully_shard

    def shard(model: Any) -> Any:
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)

    return shard


def timed(torch: Any, step: Callable[[], None], ready: Callable[[], None]) -> list[float]:
    """Mean time of a step in ns, of each set. ready: waits for the other ranks."""
    for _ in range(WARM_UP):
        step()
    times = []
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = torch.tensor(SET_S / (time.perf_counter() - begin), device="cuda")
    # All ranks take equally many steps.
    torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MIN)
    steps = min(max(int(count), STEPS_MIN), STEPS_MAX)
    for _ in range(SETS):
        ready()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / steps * 1e9)
    return times


def parts_of(torch: Any, trainer: Trainer) -> dict[str, float]:
    """The median time of each part of a step."""
    marks = Marks(torch, trainer.model)
    rows = [
        marked_step(torch, marks, trainer.forward, trainer.update)
        for _ in range(WARM_UP + MARKED_STEPS)
    ]
    return {key: statistics.median(row[key] for row in rows[WARM_UP:]) for key in rows[0]}


class Operations:
    """AllReduces on a stream of their own, one after the other; each takes about BESIDE_NS."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.side = torch.cuda.Stream()
        self.data = torch.zeros(32 << 20, dtype=torch.bfloat16, device="cuda")
        self.alone_ns = self.time_alone()
        if self.alone_ns < BESIDE_NS:
            times = BESIDE_NS / self.alone_ns
            self.data = self.data.new_zeros(int(self.data.numel() * times))
            self.alone_ns = self.time_alone()

    def launch(self, count: int) -> list[Any]:
        """Starts `count` AllReduces; returns an event before the first one, and one after each."""
        dist, cuda = self.torch.distributed, self.torch.cuda
        events = [cuda.Event(enable_timing=True) for _ in range(count + 1)]
        with cuda.stream(self.side):
            events[0].record()
            for event in events[1:]:
                dist.all_reduce(self.data, async_op=True).wait()  # only the stream waits
                event.record()
        return events

    def time_alone(self) -> float:
        def each(count: int) -> float:
            events = self.launch(count)
            events[-1].synchronize()
            return agreed(self.torch, float(events[0].elapsed_time(events[-1])) * 1e6 / count)

        return each(max(int(ALONE_NS / each(5)), 5))


def agreed(torch: Any, value: float) -> float:
    """The largest value of all ranks."""
    found = torch.tensor(value, device="cuda")
    torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
    return float(found)


def beside(torch: Any, trainer: Trainer, alone_ns: float) -> dict[str, float]:
    """The factors by which steps of one GPU and operations of all GPUs slow each other down.

    Operations run from before the first step until after the last one; those that end during the
    steps count.
    """
    operations = Operations(torch)
    alone_ns = agreed(torch, alone_ns)
    times = BESIDE_TIMES
    while True:
        count = max(int(times * BESIDE_STEPS * alone_ns / operations.alone_ns), 3)
        torch.distributed.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        events = operations.launch(count)
        begin.record()
        for _ in range(BESIDE_STEPS):
            trainer.step()
        end.record()
        torch.cuda.synchronize()
        took_ns = float(begin.elapsed_time(end)) * 1e6
        at_ns = [float(begin.elapsed_time(event)) * 1e6 for event in events]
        is_short = agreed(torch, float(at_ns[-1] < took_ns)) > 0  # the same on all ranks
        if not is_short or times >= BESIDE_TIMES_MAX:
            break
        times *= 2
    within = [one for one in at_ns if 0 <= one <= took_ns]
    if is_short or len(within) < 3:
        few = f"only {len(within)} operations ended during the steps, and 3 are needed"
        why = "the operations beside the steps ended before the steps" if is_short else few
        raise RuntimeError(f"no slowdown was measured: {why}")
    each_ns = (within[-1] - within[0]) / (len(within) - 1)
    return {
        "operation_bytes": operations.data.numel() * 2,
        "operation_ns": operations.alone_ns,
        "operations": len(within),
        "computation": took_ns / (BESIDE_STEPS * alone_ns),
        "communication": each_ns / operations.alone_ns,
    }


def host_ns(torch: Any, trainer: Trainer) -> float:
    """Time in ns that the host needs to launch a step of one sequence.

    With more sequences the host would wait for the GPU, as so many kernels do not fit in its queue.
    """
    whole = trainer.tokens, trainer.targets
    trainer.tokens, trainer.targets = (one[:1] for one in whole)
    times = []
    for _ in range(WARM_UP):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        trainer.step()
        times.append((time.perf_counter() - begin) * 1e9)
    trainer.tokens, trainer.targets = whole
    return statistics.median(times)


def measured(torch: Any, device: Any, sizes: Row, task: Row, parallel: str) -> Row:
    """A row for a model. parallel: alone, ddp or fsdp."""
    wrap = wrapper(torch, device, parallel, task["bucket_mb"])
    trainer = Trainer(torch, device, sizes, wrap)
    dist = torch.distributed

    def ready() -> None:
        torch.cuda.synchronize()
        dist.barrier()

    times = timed(torch, trainer.step, ready)
    row: Row = {"parallel": parallel, "step_ns": statistics.median(times), "times_ns": times}
    row["memory_bytes"] = torch.cuda.max_memory_allocated()
    row["loss"] = float(trainer.loss.detach())
    if parallel == "alone" and task["beside"]:
        row["beside"] = beside(torch, trainer, row["step_ns"])
    if dist.get_world_size() == 1:
        count = sum(one.numel() for one in trainer.model.parameters())
        row["host_ns"] = host_ns(torch, trainer)
        parts = parts_of(torch, trainer)
        row |= parts | {"update_ns": parts["optimizer_ns"] / count, "parameters": count}
        layers_ns = (sizes["layers"] - 1) * (parts["forward_ns"] + parts["backward_ns"])
        row["parts"] = (sum(parts.values()) + layers_ns) / row["step_ns"]
    elif parallel == "ddp":
        row["same"] = same_everywhere(torch, trainer.model)
    return sizes | row


def same_everywhere(torch: Any, model: Any) -> bool:
    """Whether the parameters of all ranks are equal, by the sum of their bits."""
    bits = sum(one.detach().view(torch.int16).long().sum() for one in model.parameters())
    least, most = bits.clone(), bits.clone()
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return bool(least == most)


def main() -> None:
    import torch

    task = json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=device)
    rows = []
    for sizes in task["models"]:
        for parallel in task["parallel"]:
            torch.cuda.reset_peak_memory_stats()
            rows.append(measured(torch, device, sizes, task, parallel))
            gc.collect()
            torch.cuda.empty_cache()
    version = ".".join(map(str, torch.cuda.nccl.version()))
    facts = {"torch": torch.__version__, "nccl": version, "gpu": torch.cuda.get_device_name(device)}
    torch.distributed.destroy_process_group()
    if rank == 0:
        print("RESULT " + json.dumps({"found": rows, "facts": facts}), flush=True)


if __name__ == "__main__":
    main()
