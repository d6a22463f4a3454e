"""Places the ranks of `bench nccl`: all on lo, or each in a host of a lab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.lib import labs
from transport.cli.lab import told

if TYPE_CHECKING:
    from transport.lab import Lab


class Hosts:
    """Places all ranks on lo; the subclass places them in a lab."""

    address = "127.0.0.1"
    interface = "lo"

    def enter(self, rank: int) -> Callable[[], None] | None:
        """A function that a rank's process must call first, or None."""
        return None

    def carried(self) -> dict[str, int]:
        """Bytes carried so far by each path between hosts, in both directions; empty on lo."""
        return {}

    def dropped(self) -> dict[str, int]:
        """Packets dropped so far by the queue of each direction of a link."""
        return {}

    def loopback_bytes(self) -> int:
        """Bytes that this host has sent to itself so far over lo."""
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


class LabHosts(Hosts):
    """Places rank i on host i of a lab; counts traffic by spine."""

    interface = "eth0"

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.address = lab.address("host0")

    def enter(self, rank: int) -> Callable[[], None] | None:
        return self.lab.enter(f"host{rank}")

    def carried(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for name, counters in self.lab.counters().items():
            source, _, target = name.partition(">")
            if source.startswith("leaf") and target.startswith("spine"):
                totals[target] = totals.get(target, 0) + counters.bytes
        return totals

    def dropped(self) -> dict[str, int]:
        return {name: one.queue_drops for name, one in self.lab.counters().items()}


@contextmanager
def hosts(file: Path | None, ranks: int) -> Iterator[Hosts]:
    """Places `ranks` processes; if they are in a lab, builds the lab and removes it later."""
    if file is None:
        yield Hosts()
        return
    from transport.lab import Lab

    model = labs.read(file)
    if model.hosts < ranks:
        raise click.UsageError(f"{file}: {ranks} ranks need a host each, the lab has {model.hosts}")
    labs.end_as_with_ctrl_c()
    with told():
        lab = Lab(model, name=labs.name_of(model))
    try:
        with told():
            lab.up()
        yield LabHosts(lab)
    finally:
        labs.remove(lab)


def shares(before: dict[str, int], after: dict[str, int]) -> list[float]:
    """Each path's share of the traffic between two readings."""
    each = [after[name] - before[name] for name in sorted(after)]
    return [round(count / max(sum(each), 1), 3) for count in each]


def newly(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """The counters that increased between two readings, and by how much."""
    grown = {name: after[name] - before[name] for name in after}
    return {name: count for name, count in grown.items() if count}
