"""Plain PyTorch DDP; `weft run` makes its NCCL use weft.

Run it: weft run -- torchrun --nproc-per-node 2 examples/ddp_plugin.py
"""

import os
import sys

WIDTH, BATCH, STEPS = 1_024, 64, 100


def main() -> None:
    try:
        import torch
        from torch import distributed, nn
        from torch.nn.parallel import DistributedDataParallel
    except ModuleNotFoundError as error:
        print(f"{error}: pip install torch, one with CUDA", file=sys.stderr)
        sys.exit(2)

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)

    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(layers.to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        batch = torch.randn(BATCH, WIDTH, device=device)
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and distributed.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
