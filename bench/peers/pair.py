"""Runs server and client of a foreign program and measures their processor time.

The module of each program parses the program's output.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import time
from collections.abc import Sequence

import click

from bench.lib.launch import program
from bench.lib.placement import Placement
from bench.lib.traffic import busiest

EXTRA_S = 15.0
SERVER_START_S = 0.4


def free_port(address: str) -> int:
    """A TCP port that is now free in this network namespace; in another one it may be in use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind(("" if family == socket.AF_INET else "::", 0))
        return int(probe.getsockname()[1])


def _spent_ns() -> int:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


def _finish(process: subprocess.Popen[str], name: str, patience_s: float) -> str:
    try:
        said, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"{name}: not done within {patience_s:.0f} s") from None
    if process.returncode:
        last = " ".join(said.split())[-300:]
        raise click.ClickException(f"{name}: exit status {process.returncode}: {last}")
    return said


def run_pair(
    name: str,
    server: Sequence[str],
    client: Sequence[str],
    places: Sequence[Placement],
    seconds: float,
    environment: dict[str, str] | None = None,
) -> tuple[str, str, dict[str, float]]:
    """Runs a server and a client; returns their outputs and their processor time."""
    prefix = ["env", *(f"{key}={value}" for key, value in (environment or {}).items())]
    begin_ns, spent_ns = time.perf_counter_ns(), _spent_ns()
    patience_s = seconds + EXTRA_S
    with program([*prefix, *server], places[0]) as serving:
        time.sleep(SERVER_START_S)
        if serving.poll() is not None:
            _finish(serving, f"{name} (server)", 1)
        with program([*prefix, *client], places[1]) as sending:
            sent = _finish(sending, name, patience_s)
        sender_ns = _spent_ns() - spent_ns
        served = _finish(serving, f"{name} (server)", EXTRA_S)
    elapsed_ns = time.perf_counter_ns() - begin_ns - int(SERVER_START_S * 1e9)
    receiver_ns = _spent_ns() - spent_ns - sender_ns
    return (
        served,
        sent,
        {
            "sender_cpu_ns": sender_ns,
            "receiver_cpu_ns": receiver_ns,
            "cpu_share": busiest(places[:2], [receiver_ns, sender_ns], elapsed_ns),
        },
    )
