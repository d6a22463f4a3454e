"""Two hosts with a wire between them, processes on them, and what the kernel says of XDP there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.waiting import PATIENCE_S, until
from transport import native
from transport.lab import namespace

ROOT = Path(__file__).resolve().parents[2]
V4, V6 = ("10.78.0.1", "10.78.0.2"), ("fd00:78::1", "fd00:78::2")
T = TypeVar("T")


def reason_to_skip() -> str:
    """Why this host cannot run the xdp datapath between namespaces; "" if it can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "making network namespaces takes root and iproute2"
    if complaint := native.why_no_xdp():
        return complaint
    try:
        namespace.in_scratch(lambda: None)
    except OSError as error:
        return f"cannot make a network namespace: {error}"
    return ""


def ip(*words: str) -> str:
    done = subprocess.run(
        ["ip", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Wire:
    """Two hosts, each with eth0 at an end of a veth pair."""

    names: tuple[str, str]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, host: int, script: str, *words: str, **settings: str) -> subprocess.Popen[str]:
        """Runs a Python script on a host; its datapath is xdp unless the settings say another."""
        return self._start([], host, [script, *words], settings)

    def start_powerless(self, host: int, script: str, **settings: str) -> subprocess.Popen[str]:
        """Runs a script without any capability."""
        before = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
        return self._start(before, host, [script], settings)

    def _start(
        self, before: list[str], host: int, script: list[str], settings: dict[str, str]
    ) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "NCCL_"))}
        usual = {"WEFT_DATAPATH": "xdp", "WEFT_INTERFACES": "eth0"}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *before, sys.executable, "-c", *script],
            cwd=ROOT,
            env=clean | usual | {"PYTHONPATH": str(ROOT)} | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def call(self, host: int, work: Callable[[], T]) -> T:
        """Runs `work` in a thread on a host; sockets made there stay there."""
        return namespace.inside(self.names[host], work)

    def program(self, host: int) -> int:
        """The id of the XDP program attached to the host's eth0; 0 if there is none."""
        shown = json.loads(ip("-n", self.names[host], "-j", "-d", "link", "show", "eth0"))
        return int(shown[0].get("xdp", {}).get("prog", {}).get("id", 0))

    def mac(self, host: int) -> str:
        shown = json.loads(ip("-n", self.names[host], "-j", "link", "show", "eth0"))
        return str(shown[0]["address"])

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate(timeout=PATIENCE_S)


@contextmanager
def wired(mtu_bytes: int = 1500, queues: int = 1) -> Iterator[Wire]:
    """Makes two hosts and removes them, with everything that runs there."""
    names = (f"weft-x0-{os.getpid()}", f"weft-x1-{os.getpid()}")
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        each = ["numrxqueues", str(queues), "numtxqueues", str(queues)]
        words = ["eth0", "netns", names[0], *each, "type", "veth"]
        ip("link", "add", *words, "peer", "name", "eth0", "netns", names[1], *each)
        for host, name in enumerate(names):
            for address in (f"{V4[host]}/24", f"{V6[host]}/64"):
                nodad = ["nodad"] if ":" in address else []
                ip("-n", name, "address", "add", address, "dev", "eth0", *nodad)
            ip("-n", name, "link", "set", "eth0", "mtu", str(mtu_bytes), "up")
        for name in names:
            up = ("-n", name, "link", "show", "eth0")
            until(lambda: "state UP" in ip(*up), "eth0 has no carrier")  # noqa: B023
        wire = Wire(names)
        try:
            yield wire
        finally:
            wire.stop()
    finally:
        for name in made:
            ip("netns", "del", name)
