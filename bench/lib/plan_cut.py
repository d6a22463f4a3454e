"""Measures how soon `weft plan watch` moves shares off a cut link, and back after it heals."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from bench.lib.common import ROOT, Config
from transport.lab import Lab
from transport.plan import planfile, watch

LIMIT_S = 20.0
SPINE = "spine1"
JOB = """
import sys, threading
from transport import ControlLoop, Endpoint
from transport.plan.follow import Follower
name, far, weights = sys.argv[1:]
with Endpoint(path_policy="weighted") as endpoint:
    if name == "server":
        with endpoint.listen(port=7000, open=True) as listener:
            print("ready", flush=True)
            with listener.accept(timeout_s=60) as connection:
                while connection.recv(1 << 20, timeout_s=60):
                    pass
    else:
        with endpoint.connect(far, 7000, timeout_s=60) as connection:
            with ControlLoop(endpoint, Follower(weights), pace_s=0.05):
                print("ready", flush=True)
                while True:
                    connection.send(bytes(1 << 18), timeout_s=60)
"""
WATCH = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"


def seconds_until(true: Callable[[], bool], what: str) -> float:
    begin_s = time.monotonic()
    while not true():
        if time.monotonic() > begin_s + LIMIT_S:
            raise click.ClickException(f"{what} has not happened within {LIMIT_S:g} s")
        time.sleep(0.005)
    return time.monotonic() - begin_s


def _start(
    lab: Lab, stack: ExitStack, folder: Path, env: dict[str, str], host: str, *words: str
) -> subprocess.Popen[str]:
    """Starts Python on a host and waits for its first line; the stack ends it."""
    made = lab.popen(
        host, [sys.executable, "-c", *words], stdout=subprocess.PIPE, text=True, cwd=folder, env=env
    )
    stack.callback(made.communicate, timeout=10)
    stack.callback(made.kill)
    assert made.stdout is not None
    if not made.stdout.readline():
        raise click.ClickException("a process has ended: see its message above")
    return made


def measure_cut(lab: Lab, folder: Path, settings: dict[str, str]) -> Config:
    """Seconds from a link's cut, and from its repair, until `weft plan watch` has changed weights.

    cut_share: packets sent over the cut link in the second after the path weights had changed, as
    a share of the packets over all uplinks of the leaf.
    """
    weights = folder / "weights.json"
    weights.unlink(missing_ok=True)
    env = settings | {"PYTHONPATH": str(ROOT), "WEFT_TELEMETRY": str(folder)}
    far = lab.address("host1")
    with ExitStack() as stack:
        start = partial(_start, lab, stack, folder, env)
        start("host1", JOB, "server", "-", "-")
        client = start("host0", JOB, "client", far, str(weights))
        start("host0", WATCH, "plan", "watch", "--telemetry", str(folder))

        def row() -> list[float]:
            found = watch.read(weights) if weights.exists() else {}
            return found.get(str(client.pid), {}).get(far, {}).get("0", [])

        links = planned_links(folder / "plan.json")
        crossing = [path for path, passed in enumerate(links) if f"leaf0>{SPINE}" in passed]
        seconds_until(
            lambda: len(row()) == len(links) and min(row()) == 1.0,
            "a start with equal weights of all paths",
        )
        time.sleep(1.0)
        lab.cut(f"leaf0-{SPINE}")
        moved_s = seconds_until(
            lambda: zeros(row()) == crossing, "the move of shares off the cut link"
        )
        before = lab.counters()
        time.sleep(1.0)
        after = lab.counters()
        grown = {name: after[name].offered_packets - before[name].offered_packets for name in after}
        lab.heal(f"leaf0-{SPINE}")
        back_s = seconds_until(lambda: min(row()) == 1.0, "the return of shares to the healed link")
    sent = sum(grown[f"leaf0>spine{at}"] for at in range(lab.model.spines))
    return {
        "moved_s": moved_s,
        "back_s": back_s,
        "cut_share": grown[f"leaf0>{SPINE}"] / max(sent, 1),
    }


def zeros(row: list[float]) -> list[int]:
    return [path for path, one in enumerate(row) if one == 0.0]


def planned_links(file: Path) -> tuple[tuple[str, ...], ...]:
    jobs = planfile.read(file).jobs
    return next(
        pair.links for pair in jobs["ring"] if (pair.source, pair.target) == ("host0", "host1")
    )


def clean_environment(paths: int) -> dict[str, str]:
    """This process's environment without weft's settings, but with those of the bench."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    own = {"WEFT_INTERFACES": "eth0", "WEFT_ENGINES": "1", "WEFT_PATHS": str(paths)}
    return clean | own | {"WEFT_LOCAL": "off"}
