"""Tests sums and exchanges of two hosts with two GPUs each, where NCCL may use PXN.

With PXN, a rank sends through the GPU of its host that is nearest to the NIC. Two GPUs are enough:
two ranks on each form two hosts by their host id (NCCL_HOSTID), and a topology file
(NCCL_TOPO_FILE) puts the NIC beside the first GPU. Says how many sends go by another rank: none as
long as weft takes no device pointers, for without GPUDirect RDMA no GPU counts as near a NIC (NCCL
2.28). Usage: python -m tests.device.pxn PLUGIN.so [INTERFACE]. Ends with 1 if a result is wrong.
PXN_LOGS: a folder for NCCL's logs. Needs PyTorch with NCCL and two GPUs linked by NVLink.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bench.nccl import free_port

RANKS, GPUS = 4, 2
SIZES = (64, 4_096, 1 << 20, 16 << 20)  # elements of four bytes
ROUNDS = 20
CASES: dict[str, dict[str, str]] = {
    "PXN, single receives": {},
    "PXN, grouped receives": {"WEFT_NCCL_RECEIVES_MAX": "8"},
    "without PXN": {"NCCL_PXN_DISABLE": "1"},
}
# "1[1] -> 2[0] [send] via NET/weft/0(0)": the number in brackets is the rank that sends for rank 1.
SENT = re.compile(r"(\d+)\[\d+\] -> (\d+)\[\d+\] \[send\] via NET/[^/]+/\d+(?:\((\d+)\))?")


def rank_main(rank: int, plugin: str, interface: str, port: int, logs: str, more: Any) -> None:
    """One rank: exact sums and exchanges of all sizes."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_HOSTID": f"host{rank // GPUS}",
        "NCCL_NET": "weft",
        "NCCL_NET_PLUGIN": plugin,
        "NCCL_SOCKET_IFNAME": "lo",
        "WEFT_INTERFACES": interface,
        "WEFT_LOCAL": "off",
        "NCCL_P2P_PXN_LEVEL": "2",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P,GRAPH",
        "NCCL_DEBUG_FILE": f"{logs}/{rank}.log",
        **more,
    }
    device = torch.device("cuda", rank % GPUS)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    for size in SIZES:
        sums = torch.empty(size, dtype=torch.int32, device=device)
        into = torch.empty(size, dtype=torch.int32, device=device)
        for turn in range(ROUNDS):
            sums.fill_(turn + rank)
            dist.all_reduce(sums)
            assert bool((sums == RANKS * turn + 6).all()), f"a wrong sum of {size} in round {turn}"
            own = torch.arange(size, dtype=torch.int32, device=device) * 7 + rank * 1_000 + turn
            dist.all_to_all_single(into, own)
            part = size // RANKS
            each = torch.arange(size, dtype=torch.int32, device=device)
            source, place = each // part, each % part + rank * part
            right = place * 7 + source * 1_000 + turn
            assert bool((into == right).all()), f"a wrong exchange of {size} in round {turn}"
    dist.barrier()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_to_all_single(into, own)
    torch.cuda.synchronize()
    if rank == 0:
        took_ms = (time.perf_counter() - began) / ROUNDS * 1e3
        print(f"  all results exact; an all-to-all of {SIZES[-1] * 4 >> 20} MiB {took_ms:.1f} ms")
    dist.destroy_process_group()


def pci(address: str, kind: str) -> dict[str, str]:
    """The attributes of a PCI device of 16 lanes. kind: its PCI class."""
    speed = {"link_speed": "32.0 GT/s PCIe", "link_width": "16"}
    return {"busid": address, "class": kind, **speed}


def beside_first_gpu(topology: Path) -> None:
    """Moves the NICs of a topology that NCCL dumped to a PCI switch of the first GPU."""
    tree = ElementTree.parse(topology)
    parents = {child: parent for parent in tree.iter() for child in parent}
    first = next(gpu for gpu in tree.iter("gpu") if gpu.get("dev") == "0")
    place = parents[first]  # the GPU's PCI device
    above = parents[place]
    switch = ElementTree.Element("pci", pci("fffe:01:00.0", "0x060400"))
    above.remove(place)
    above.append(switch)
    switch.append(place)
    nic = ElementTree.SubElement(switch, "pci", pci("fffe:02:00.0", "0x020000"))
    for one in [each for each in tree.iter("nic") if each.find("net") is not None]:
        parents[one].remove(one)
        nic.append(one)
    tree.write(topology)


def run(plugin: str, interface: str, logs: Path, more: dict[str, str]) -> None:
    """All ranks, each of which logs to its own file."""
    mp.spawn(rank_main, args=(plugin, interface, free_port(), str(logs), more), nprocs=RANKS)


def sends_of(logs: Path) -> tuple[int, int]:
    """How many sends NCCL planned over the network, and how many of them go by another rank."""
    found = [
        match
        for file in sorted(logs.glob("*.log"))
        for match in SENT.finditer(file.read_text(errors="replace"))
    ]
    by_others = [one for one in found if one[3] is not None and one[3] != one[1]]
    return len(found), len(by_others)


def main() -> None:
    plugin = str(Path(sys.argv[1]).resolve())
    interface = sys.argv[2] if len(sys.argv) > 2 else "lo"
    with tempfile.TemporaryDirectory() as folder:
        topology = Path(os.environ.get("PXN_LOGS", folder)) / "topology.xml"
        print("without a topology file", flush=True)
        run(plugin, interface, Path(folder), {"NCCL_TOPO_DUMP_FILE": str(topology)})
        beside_first_gpu(topology)
        for number, (name, more) in enumerate(CASES.items()):
            logs = Path(os.environ.get("PXN_LOGS", folder)) / str(number)
            logs.mkdir(parents=True)
            print(name, flush=True)
            run(plugin, interface, logs, more | {"NCCL_TOPO_FILE": str(topology)})
            sends, by_others = sends_of(logs)
            print(f"  {by_others} of {sends} sends go by another rank", flush=True)
    print("NCCL", torch.cuda.nccl.version(), torch.cuda.get_device_name(0), "weft: local off")


if __name__ == "__main__":
    main()
