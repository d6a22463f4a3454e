"""Decides which lab a bench runs in, and that it is gone when the bench is.

Never changes a link: the bench that wants it changed does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.placement import EnterNamespace, Placement

if TYPE_CHECKING:
    from transport.lab import Lab, LabModel

NAME_LETTERS = 20
QUEUE_BYTES_MIN = 512 << 10  # some bursts of 64 KB: a queue of less is full of chance


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What is wrong with a lab, as one line: 2 where it was asked for wrongly, else 1."""
    from transport.lab import LabError, LabModelError

    try:
        yield
    except LabModelError as error:
        raise click.UsageError(str(error)) from None
    except LabError as error:
        raise click.ClickException(str(error)) from None


def read(path: Path) -> LabModel:
    """The lab that a file describes."""
    from transport.lab import load

    with told():
        return load(path)


def equal_paths(rate_bytes_per_s: int, paths: int = 4) -> LabModel:
    """Two hosts and so many equal paths; full queues are 4 ms, and half a queue is marked."""
    from transport.lab import LabModel, Link

    with told():
        queue_bytes = max(rate_bytes_per_s // 250, QUEUE_BYTES_MIN)
        uplinks = Link(rate_bytes_per_s, queue_bytes=queue_bytes, ecn_bytes=queue_bytes // 2)
        host_links = replace(uplinks, rate_bytes_per_s=paths * rate_bytes_per_s, ecn_bytes=0)
        host_links = replace(host_links, queue_bytes=paths * queue_bytes)
        return LabModel(name="paths", spines=paths, host_links=host_links, uplinks=uplinks)


def build(model: LabModel) -> Lab:
    """A lab of this model until the command that is running ends, however it ends."""
    from transport.lab import Lab

    if threading.current_thread() is threading.main_thread():
        # Ended by whoever started it, it has a lab to take away too: as with Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    lab = Lab(model, name=f"{model.name[:NAME_LETTERS]}-{os.getpid()}")
    with told():
        lab.up()
    click.get_current_context().call_on_close(lab.down)
    return lab


def places(lab: Lab) -> tuple[Placement, ...]:
    """One a host, in their order."""
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


def uplinks(lab: Lab) -> list[str]:
    """The links between leaf 0 and the spines: every path of host0 has one."""
    return [link for link in lab.model.link_names() if link.startswith("leaf0-")]


def capacity_bytes_per_s(lab: Lab) -> int:
    """What host0 can send to a host of another leaf: its link, or all of its leaf's uplinks now."""
    now = lab.current()
    paths = [
        min(
            now.link(link).rate_bytes_per_s,
            now.link(link.replace("leaf0", "leaf1")).rate_bytes_per_s,
        )
        for link in uplinks(lab)
    ]
    return min(sum(paths), now.link("host0-leaf0").rate_bytes_per_s)
