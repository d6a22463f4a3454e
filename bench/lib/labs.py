"""Makes the lab that a benchmark runs in, and removes it when the benchmark ends."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.lib.placement import EnterNamespace, Placement, with_cores
from transport.cli.lab import told

if TYPE_CHECKING:
    from transport.lab import Lab, LabModel

NAME_LETTERS = 20
QUEUE_BYTES_MIN = 512 << 10  # room for some bursts of 64 KiB; shorter queues overflow by chance


def read(path: Path) -> LabModel:
    """Reads a lab file."""
    from transport.lab import load

    with told():
        return load(path)


def equal_paths(rate_bytes_per_s: int, paths: int = 4) -> LabModel:
    """Two hosts and equal paths; a full queue drains in 4 ms; ECN marks begin at half a queue."""
    from transport.lab import LabModel, Link

    with told():
        queue_bytes = max(rate_bytes_per_s // 250, QUEUE_BYTES_MIN)
        uplinks = Link(rate_bytes_per_s, queue_bytes=queue_bytes, ecn_bytes=queue_bytes // 2)
        host_links = replace(uplinks, rate_bytes_per_s=paths * rate_bytes_per_s, ecn_bytes=0)
        host_links = replace(host_links, queue_bytes=paths * queue_bytes)
        return LabModel(name="paths", spines=paths, host_links=host_links, uplinks=uplinks)


def build(model: LabModel) -> Lab:
    """Builds a lab and removes it when the current command ends for any reason."""
    from transport.lab import Lab

    end_as_with_ctrl_c()
    with told():
        lab = Lab(model, name=name_of(model))
        # Register the removal before the lab is built, because an interrupt may come in between.
        click.get_current_context().call_on_close(partial(remove, lab))
        lab.up()
    return lab


def name_of(model: LabModel) -> str:
    """A lab name that is unique to this run."""
    return f"{model.name[:NAME_LETTERS]}-{os.getpid()}"


def end_as_with_ctrl_c() -> None:
    """Makes SIGTERM and SIGHUP end a run like Ctrl-C, so that its lab is removed."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)


def remove(lab: Lab) -> None:
    """Removes a lab, unless it is gone already."""
    from transport.lab import state

    if lab.name in state.names():
        with told():
            lab.down()


def change(lab: Lab, link: str, **fields: Any) -> None:
    """Lab.set(), with errors as a ClickException of one line."""
    with told():
        lab.set(link, **fields)


def places(lab: Lab) -> tuple[Placement, ...]:
    """A placement per host, in order."""
    from transport.lab.namespace import DIRECTORY

    return tuple(
        Placement(
            name=host,
            address=lab.address(host),
            interfaces="eth0",
            enter=EnterNamespace(str(DIRECTORY / lab.plan.namespace(host))),
        )
        for host in lab.plan.nodes
        if host.startswith("host")
    )


def across(lab: Lab) -> list[Placement]:
    """Two hosts with all paths between them: the first of leaf 0 and the first of leaf 1."""
    every = places(lab)
    return with_cores([every[0], every[lab.model.hosts_per_leaf]])


def uplinks(lab: Lab) -> list[str]:
    """The links between leaf 0 and the spines; every path of host0 uses one of them."""
    return [link for link in lab.model.link_names() if link.startswith("leaf0-")]


def capacity_bytes_per_s(lab: Lab) -> int:
    """Current capacity between two hosts: a host's link, or all paths if they carry less."""
    now = lab.current()

    def rate(link: str) -> int:
        return now.link(link).rate_bytes_per_s

    paths = [min(rate(link), rate(link.replace("leaf0", "leaf1"))) for link in uplinks(lab)]
    far = f"host{lab.model.hosts_per_leaf}-leaf1"
    return min(sum(paths), rate("host0-leaf0"), rate(far))
