"""Tests two GPU ranks across four paths: a rank is stopped, paths are cut, a rank is restarted.

python3 -m tests.device.liveness FOLDER [--seconds 60] [--under torch|nccl]
Needs root, pyroute2, PyTorch and two GPUs. The results go to FOLDER/liveness-torch.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.lib.common import document
from bench.nccl import driver
from transport import native
from transport.lab import Lab, load

LINKS = [f"leaf0-spine{i}" for i in range(4)]
PROGRAMS = {"torch": "tests.device.liveness_torch", "nccl": "tests.device.liveness_rank"}
NCCL = {
    "NCCL_NET": "weft",
    "NCCL_NET_PLUGIN": str(native.PLUGIN_PATH),
    "NCCL_NET_PLUGIN_REF_COUNT": "1",  # as `weft run` sets it
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_COLLNET_ENABLE": "0",
    "WEFT_INTERFACES": "eth0",
    "WEFT_LOCAL": "off",
}


class Rank:
    """A rank's process and its output."""

    def __init__(self, lab: Lab, program: str, folder: Path, rank: int, generation: int) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "WEFT_"))}
        log = folder / f"nccl-{rank}-{generation}.log"
        words = [str(folder), str(rank), "2", str(generation)]
        self.process: subprocess.Popen[str] = lab.popen(
            f"host{rank}",
            [sys.executable, "-m", program, *words],
            stdout=subprocess.PIPE,
            text=True,
            env=clean | NCCL | {"NCCL_DEBUG_FILE": str(log)},
        )
        self.said: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):
                self.said.append(json.loads(text))

    def last(self, event: str) -> dict[str, Any]:
        found = [one for one in self.said if one["event"] == event]
        return found[-1] if found else {}

    def rounds(self, generation: int = 0) -> int:
        found = self.last("rounds")
        return int(found["rounds"]) if found.get("generation") == generation else 0


def libraries() -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "driver": driver(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def wait(what: Callable[[], bool], limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class Trial:
    """Runs the two ranks through all phases and stores the outcome of each phase."""

    def __init__(self, lab: Lab, program: str, folder: Path, long_s: float) -> None:
        self.lab, self.program, self.folder, self.long_s = lab, program, folder, long_s
        self.ranks = [Rank(lab, program, folder, rank, 0) for rank in range(2)]
        self.rows: list[dict[str, Any]] = []

    def row(self, phase: str, passed: bool, **facts: Any) -> None:
        failed = [one for rank in self.ranks for one in rank.said if one["event"] == "wrong"]
        self.rows.append({"phase": phase, "passed": passed and not failed} | facts)
        print(self.rows[-1], flush=True)

    def goes_on(self, limit_s: float = 30, generation: int = 0) -> bool:
        before = self.ranks[0].rounds(generation)
        return wait(lambda: self.ranks[0].rounds(generation) > before + 1, limit_s)

    def healthy(self) -> bool:
        return not any(rank.last("error") for rank in self.ranks)

    def stop(self) -> None:
        pid = self.ranks[1].process.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.long_s)
        survived = self.healthy()
        os.kill(pid, signal.SIGCONT)
        self.row(f"rank 1 stopped for {self.long_s:.0f} s", survived and self.goes_on())

    def rate(self, seconds: float) -> float:
        """Measures over `seconds` how many rounds of its loop rank 0 completes per second."""
        before = self.ranks[0].rounds()
        time.sleep(seconds)
        return (self.ranks[0].rounds() - before) / seconds

    def cut(self, links: list[str], seconds: float) -> None:
        before = self.rate(3)
        for link in links:
            self.lab.cut(link)
        during = self.rate(seconds)
        for link in links:
            self.lab.heal(link)
        passed = during > 0 and self.healthy() and self.goes_on()
        rates = {"rounds_per_s_before": before, "rounds_per_s_meanwhile": during}
        self.row(f"{'+'.join(links)} cut for {seconds:.0f} s", passed, **rates)

    def kill(self) -> None:
        begin = time.time()
        self.ranks[1].process.kill()
        told = wait(lambda: bool(self.ranks[0].last("error")), 60)
        error = self.ranks[0].last("error")
        took_s = error["at"] - begin if told else None
        remote = "remote" in error.get("error", "")
        self.row("rank 1 killed", told and remote, error=error.get("error"), seconds=took_s)
        self.ranks[1] = Rank(self.lab, self.program, self.folder, 1, 1)
        again = wait(lambda: self.ranks[0].rounds(1) > 2, 120)
        self.row("a restarted rank and the survivor, the same process", again)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of stop and each cut")
    parser.add_argument("--under", choices=PROGRAMS, default="torch")
    options = parser.parse_args()
    folder = options.folder.resolve()
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the lab is removed
    name = f"liveness-{options.under}"
    with Lab(load(Path("examples/labs/gpus.toml")), name=name) as lab:
        trial = Trial(lab, PROGRAMS[options.under], work, options.seconds)
        began = wait(lambda: trial.ranks[0].rounds() > 3, 120)
        trial.row(f"rounds of all-reduce under {options.under} across four paths", began)
        if began:
            trial.stop()
            for link in LINKS:
                trial.cut([link], options.seconds)
            trial.cut(LINKS[1:], options.seconds / 2)
            trial.kill()
    rounds = [[one["at"], one["rounds"]] for one in trial.ranks[0].said if one["event"] == "rounds"]
    result = document("liveness", trial.rows, rounds=rounds, local="off", **libraries())
    (folder / f"liveness-{options.under}.json").write_text(json.dumps(result, indent=1))
    for log in work.glob("nccl-*.log"):
        lines = [one for one in log.read_text(errors="replace").splitlines() if "weft" in one]
        (folder / f"{options.under}-{log.name}").write_text("\n".join(lines[:200]))
    return 0 if all(row["passed"] for row in trial.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
