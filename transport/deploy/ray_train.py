"""Trains on two hosts with Ray Train, whose workers use NCCL over weft.

Start Ray with ray_start.sh on each host, then: python ray_train.py
"""

import os
import sys

WORKERS, STEPS = 16, 100


def train() -> None:
    """Sums a tensor over all workers; stands for a training loop."""
    import torch

    if os.environ.get("NCCL_NET") != "weft":
        raise RuntimeError("Ray was started without weft run: use ray_start.sh on every host")
    device = torch.device("cuda", torch.cuda.current_device())
    for step in range(STEPS):
        total = torch.ones(1 << 20, device=device)
        torch.distributed.all_reduce(total)
        if step % 20 == 0 and torch.distributed.get_rank() == 0:
            print(f"step {step}: {total[0].item():.0f} workers")


def main() -> None:
    try:
        from ray.train import ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ModuleNotFoundError as error:
        print(f"{error}: pip install 'ray[train]' torch", file=sys.stderr)
        sys.exit(2)

    # One worker a GPU: Ray Train makes the process group, with NCCL.
    workers = ScalingConfig(num_workers=WORKERS, use_gpu=True)
    TorchTrainer(train, scaling_config=workers, torch_config=TorchConfig(backend="nccl")).fit()


if __name__ == "__main__":
    main()
