"""Emulates a network of a few paths between two namespaces in one process.

It provides delay, jitter and reordering, which the lab's kernel queues do not have everywhere. Each
end is a TUN device. A packet's path is chosen by its ports, as by ECMP. The network forwards some
40,000 packets per second.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transport.lab import kernel, namespace

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "wan0"
ADDRESSES = ("10.83.0.1", "10.83.0.2")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES_MAX = 65_535
BATCH = 32  # maximum number of packets read from one end before the other end is read
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Road:
    """One direction of a path."""

    rate_bytes_per_s: int = 25_000_000
    queue_bytes: int = 1 << 20
    delay_ns: int = 0
    jitter_ns: int = 0  # upper bound of a random extra delay; packets overtake each other
    loss: float = 0.0
    pass_every: int = 0  # n: only every n-th packet passes; 0: all packets pass
    burst_enter: float = 0.0  # probability per packet that a burst of losses begins
    burst_leave: float = 0.1  # probability per packet that a burst of losses ends
    reorder: float = 0.0  # share of packets that are delayed by reorder_ns more
    reorder_ns: int = 5_000_000
    flap_ns: int = 0  # the path is up for this time, then down for as long; 0: always up


class Queue:
    """Computes when a packet arrives over a path, or that it is lost."""

    def __init__(self, path: Road, seed: int) -> None:
        self.path, self.chance = path, random.Random(seed)
        self.free_ns = self.count = 0
        self.bursting = False

    def due_ns(self, now_ns: int, size: int) -> int | None:
        path, chance = self.path, self.chance
        self.count += 1
        if path.flap_ns and now_ns // path.flap_ns % 2:
            return None
        waiting_ns = max(self.free_ns - now_ns, 0)
        if waiting_ns * path.rate_bytes_per_s // NS_PER_S + size > path.queue_bytes:
            return None
        self.free_ns = now_ns + waiting_ns + size * NS_PER_S // path.rate_bytes_per_s
        if path.pass_every and self.count % path.pass_every:
            return None
        if path.burst_enter:
            turn = path.burst_leave if self.bursting else path.burst_enter
            self.bursting ^= chance.random() < turn
            if self.bursting:
                return None
        if path.loss and chance.random() < path.loss:
            return None
        due = self.free_ns + path.delay_ns
        if path.jitter_ns:
            due += int(chance.random() * path.jitter_ns)
        if path.reorder and chance.random() < path.reorder:
            due += path.reorder_ns
        return due


def open_tun(space: str, address: str, mtu_bytes: int) -> int:
    """Opens a TUN device in a namespace; packets are read from and written to the descriptor."""

    def work() -> int:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(
            descriptor, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
        )
        return descriptor

    descriptor = namespace.inside(space, work)
    for words in (
        ["addr", "add", f"{address}/24", "dev", DEVICE],
        ["link", "set", DEVICE, "mtu", str(mtu_bytes), "txqueuelen", "10000", "up"],
        ["link", "set", "lo", "up"],
    ):
        subprocess.run(["ip", "-n", space, *words], check=True)
    return descriptor


def path_of(packet: bytes, count: int) -> int:
    """The path of a packet: a hash of addresses, protocol and ports, as in a router's ECMP."""
    header = 4 * (packet[0] & 15)
    return zlib.crc32(packet[9:10] + packet[12:20] + packet[header : header + 4]) % count


def serve(spaces: Sequence[str], ways: Sequence[Sequence[Road]], mtu_bytes: int) -> None:
    """Forwards packets until stdin ends. Each line on stdin is a JSON command, which is answered.

    A list replaces all paths. A number removes or restores the TUN device of that end.
    """
    tuns = [open_tun(*one, mtu_bytes) for one in zip(spaces, ADDRESSES, strict=True)]
    queues = [[Queue(path, 100 * way + i) for i, path in enumerate(ways[way])] for way in (0, 1)]
    flying: list[tuple[int, int, int, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        wait_s = max(flying[0][0] - time.monotonic_ns(), 0) / NS_PER_S if flying else 1.0
        ready = select.select([sys.stdin, *(tun for tun in tuns if tun >= 0)], [], [], wait_s)[0]
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            wanted = json.loads(line)
            if isinstance(wanted, int):
                if tuns[wanted] >= 0:
                    os.close(tuns[wanted])
                    tuns[wanted] = -1
                else:
                    tuns[wanted] = open_tun(spaces[wanted], ADDRESSES[wanted], mtu_bytes)
            else:
                for way, paths in enumerate(wanted):
                    for queue, fields in zip(queues[way], paths, strict=True):
                        queue.path = Road(**fields)
            print("changed", flush=True)
            continue
        for way, tun in enumerate(tuns):
            if tun not in ready:
                continue
            for _ in range(BATCH):
                try:
                    packet = os.read(tun, PACKET_BYTES_MAX)
                except OSError:  # no more packets, or the device is down
                    break
                if packet[0] >> 4 != 4:
                    continue
                queue = queues[way][path_of(packet, len(queues[way]))]
                due = queue.due_ns(time.monotonic_ns(), len(packet))
                if due is not None:
                    number += 1
                    heapq.heappush(flying, (due, number, 1 - way, packet))
        now = time.monotonic_ns()
        while flying and flying[0][0] <= now:
            _, _, end, packet = heapq.heappop(flying)
            with suppress(OSError):  # the packet is lost if the receiving device refuses it
                os.write(tuns[end], packet)


class Wire:
    """Two namespaces and the process that forwards between them, for use in a `with`."""

    def __init__(
        self,
        name: str,
        paths: Sequence[Road],
        *,
        back: Sequence[Road] | None = None,
        mtu_bytes: int = 1_500,
    ) -> None:
        self.spaces = [f"weft-{name}-host{end}" for end in (0, 1)]
        self.ways = [list(paths), list(back if back is not None else paths)]
        self.mtu_bytes = mtu_bytes
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Wire:
        try:
            for space in self.spaces:
                namespace.make(space)
            given = json.dumps([[asdict(path) for path in way] for way in self.ways])
            words = [*self.spaces, str(self.mtu_bytes), given]
            command = [sys.executable, "-m", "bench.lib.wire", *words]
            self._process = subprocess.Popen(
                command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._expect("ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        namespace.end_processes(self.spaces)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
        for space in self.spaces:
            if namespace.exists(space):
                namespace.remove(space)

    def change(self, index: int, way: int | None = None, **fields: Any) -> None:
        """Changes a path in both directions, or in one only."""
        for each in (0, 1) if way is None else (way,):
            self.ways[each][index] = replace(self.ways[each][index], **fields)
        self._say([[asdict(path) for path in each] for each in self.ways])

    def replug(self, end: int) -> None:
        """Removes the device of an end, or restores it."""
        self._say(end)

    def _say(self, wanted: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        self._expect("changed")

    def _expect(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if (said := self._process.stdout.readline().strip()) != word:
            raise RuntimeError(f"the network process answered {said!r}, not {word!r}")

    def popen(self, end: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in the namespace of end 0 or 1."""
        space = self.spaces[end]

        def enter() -> None:
            descriptor = namespace.open_namespace(space)
            kernel.enter_namespace(descriptor)
            os.close(descriptor)

        return subprocess.Popen(command, preexec_fn=enter, **options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("spaces", nargs=2)
    parser.add_argument("mtu_bytes", type=int)
    parser.add_argument("ways", type=json.loads)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent ends this process
    serve(given.spaces, [[Road(**path) for path in way] for way in given.ways], given.mtu_bytes)


if __name__ == "__main__":
    main()
