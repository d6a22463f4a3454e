"""Measures a ring of hosts over several spines of a lab, with planned ports and without.

A connection uses its paths in turn or chooses them by load; all hosts send at the same time.
Results are shares of what the links can carry, headers included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import click

from bench.lib.common import ROOT, Config, document, emit, interruptible, json_option, median
from bench.lib.plan_cut import clean_environment, measure_cut
from bench.lib.plan_size import measure_size
from transport.cli.lab import told
from transport.lab import Lab, LabModel, Link
from transport.plan import planfile
from transport.plan.bases import assign_ports
from transport.plan.demand import of_ring
from transport.plan.hops import found
from transport.plan.probe import End, Flow, Limits, Prober, grid, udp_socket

PORT, BASE = 7000, 20_000
PAIRS = 256  # least number of pairs of UDP ports to probe from one host to another
MESSAGE_BYTES, IN_FLIGHT = 256 << 10, 16
WARM_S = 1.5
COLUMNS = ("ports", "path_policy", "round", "share", "busiest", "mbytes_per_s")
CUT_COLUMNS = ("moved_s", "back_s", "cut_share")
SIZE_COLUMNS = ("hosts", "spines", "paths", "assign_s", "busiest", "ecmp")
WORKER = f"""
import sys, threading, time
from transport import Endpoint
from transport.errors import WeftError
near, far = sys.argv[1:]
count = 0

def receive(listener):
    global count
    with listener.accept(timeout_s=60) as taken:
        rows = [bytearray({MESSAGE_BYTES}) for _ in range({IN_FLIGHT})]
        requests = [taken.irecv_into(row) for row in rows]
        at = 0
        try:
            while True:
                requests[at].wait(timeout_s=60)
                requests[at] = taken.irecv_into(rows[at])
                at = (at + 1) % {IN_FLIGHT}
                count += 1
        except WeftError:
            pass

with Endpoint() as endpoint, endpoint.listen(port={PORT}, open=True) as listener:
    thread = threading.Thread(target=receive, args=(listener,))
    thread.start()
    print("ready", flush=True)
    begin_s, end_s = map(float, input().split())
    with endpoint.connect(far, {PORT}, timeout_s=60) as out:
        row = bytes({MESSAGE_BYTES})
        requests = [out.isend(row) for _ in range({IN_FLIGHT})]
        at, first = 0, None
        while (now_s := time.monotonic()) < end_s + 0.5:
            requests[at].wait(timeout_s=60)
            requests[at] = out.isend(row)
            at = (at + 1) % {IN_FLIGHT}
            if first is None and now_s >= begin_s:
                first, begin_s = count, now_s
            if now_s < end_s:
                last, last_s = count, now_s
        print((last - first) * {MESSAGE_BYTES} / (last_s - begin_s), flush=True)
        sys.stdin.readline()
    sys.stdout.flush()
    import os
    os._exit(0)
"""


@contextmanager
def workers(
    lab: Lab, hosts: list[str], settings: dict[str, str]
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process in each host, which receives from the host before and sends to the next one."""
    running = []
    try:
        for at, host in enumerate(hosts):
            far = lab.address(hosts[(at + 1) % len(hosts)])
            words = [sys.executable, "-c", WORKER, lab.address(host), far]
            running.append(
                lab.popen(
                    host,
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env=settings,
                )
            )
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate(timeout=10)


def said(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def tell(worker: subprocess.Popen[str], text: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(text + "\n")
    worker.stdin.flush()


def measure(lab: Lab, hosts: list[str], settings: dict[str, str], seconds: float) -> Config:
    """One round: the bytes received, and those that the uplinks of the leaves carried."""
    with workers(lab, hosts, settings) as running:
        if any(said(one) != "ready" for one in running):
            raise click.ClickException("a process of the ring has ended: see its message above")
        begin_s = time.monotonic() + WARM_S
        for one in running:
            tell(one, f"{begin_s} {begin_s + seconds}")
        time.sleep(max(begin_s - time.monotonic(), 0))
        before, at_s = lab.counters(), time.monotonic()
        time.sleep(max(begin_s + seconds - time.monotonic(), 0))
        after, end_s = lab.counters(), time.monotonic()
        rates = [float(said(one) or 0) for one in running]
    rate = lab.model.uplinks.rate_bytes_per_s
    uplinks = [
        f"leaf{leaf}>spine{at}"
        for leaf in range(lab.model.leaves)
        for at in range(lab.model.spines)
    ]
    carried = [(after[name].bytes - before[name].bytes) / (end_s - at_s) for name in uplinks]
    return {
        "mbytes_per_s": sum(rates) / 1e6,
        "share": sum(carried) / (rate * len(uplinks)),
        "busiest": max(carried) / rate,
    }


def planned(lab: Lab, hosts: list[str], paths: int, file: Path) -> tuple[float, float, int]:
    """Probes port pairs, assigns them to paths and writes the plan.

    Returns the seconds of probing and of assigning, and the first port. With few paths, it probes
    several ranges of ports, as the pairs of one range may lead over some of the spines only.
    """
    ends = [End(one, lab.address(one), partial(lab.call, one, udp_socket)) for one in hosts]
    ranges = [range(at, at + paths) for at in range(BASE, BASE + max(paths, PAIRS // paths), paths)]
    pairs = [(at, (at + step) % len(hosts)) for at in range(len(hosts)) for step in (1, -1)]
    flows = [
        Flow(*ends_, *two)
        for ends_ in dict.fromkeys(pairs)
        for ports in ranges
        for two in grid(ports, ports, 256)
    ]
    names = {end.address: end.node for wire in lab.plan.wires for end in wire.ends}
    begin_s = time.monotonic()
    with Prober(ends, flows, Limits()) as prober:
        routes = found(ends, prober.run(), names).routes
    probed_s = time.monotonic()
    base, made = assign_ports(routes, of_ring(hosts), paths=paths)
    assert base is not None
    planfile.write(planfile.Plan(routes.fingerprint(), {"ring": made.pairs}), file)
    return probed_s - begin_s, time.monotonic() - probed_s, base


@click.command("plan")
@click.option("--hosts", type=click.IntRange(2, 16), default=4, show_default=True)
@click.option("--spines", type=click.IntRange(1, 16), default=4, show_default=True)
@click.option("--paths", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option(
    "--rate",
    type=click.IntRange(100_000),
    default=5_000_000,
    show_default=True,
    help="Bytes per second of each uplink.",
)
@click.option(
    "--policies", default="round_robin,power_of_two", show_default=True, help="Path policies."
)
@click.option("-D", "--duration", type=click.FloatRange(0.5, 600), default=5.0, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--cut", "cuts", is_flag=True, help="Instead, measure how soon shares leave a cut link."
)
@click.option("--size", "sizes", is_flag=True, help="Instead, plan 1,024 hosts: time and loads.")
@json_option
def command(
    hosts: int,
    spines: int,
    paths: int,
    rate: int,
    policies: str,
    duration: float,
    repeats: int,
    cuts: bool,
    sizes: bool,
    json_path: str | None,
) -> None:
    """Measures a ring over a lab: planned ports beside ports that the kernel chose."""
    if sizes:
        emit_sizes(json_path)
        return
    model = LabModel(
        hosts=hosts,
        spines=spines,
        uplinks=Link(rate_bytes_per_s=rate),
        host_links=Link(rate_bytes_per_s=8 * spines * rate),
    )
    chosen = [one.strip() for one in policies.split(",")]
    clean = clean_environment(paths)
    rows: list[Config] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        told(),
        Lab(model, name=f"plan{os.getpid()}") as lab,
        interruptible() as cut,
    ):
        names = [f"host{at}" for at in range(hosts)]
        file = Path(folder) / "plan.json"
        probe_s, assign_s, base = planned(lab, names, paths, file)
        plan = {"WEFT_PLAN": str(file), "WEFT_PORT_BASE": str(base)}
        if cuts:
            rows += [measure_cut(lab, Path(folder), clean | plan) for _ in range(repeats)]
        for turn in range(0 if cuts else repeats):
            for policy, ports in product(chosen, ("planned", "any")):
                settings = clean | {"WEFT_PATH_POLICY": policy}
                row = measure(lab, names, settings | (plan if ports == "planned" else {}), duration)
                rows.append({"ports": ports, "path_policy": policy, "round": turn} | row)
    shape = {"hosts": hosts, "spines": spines, "paths": paths, "rate_bytes_per_s": rate}
    notes = said_of_cuts(rows) if cuts else said_of_rounds(rows, chosen)
    notes.append(f"probing took {probe_s:.1f} s, assigning {assign_s * 1e3:.0f} ms")
    result = document("plan", rows, config=shape, probe_s=probe_s, assign_s=assign_s)
    emit(result, json_path, CUT_COLUMNS if cuts else COLUMNS, notes, cut)


def emit_sizes(json_path: str | None) -> None:
    """Plans large jobs, without a lab."""
    plans = [measure_size(count) for count in (1, 8, 32)]
    note = "busiest, ecmp: the busiest link's load / the least possible one, planned and with ECMP"
    emit(document("plan", plans), json_path, SIZE_COLUMNS, [note])


def said_of_cuts(rows: list[Config]) -> list[str]:
    return [
        f"median: shares left a cut link after {median(rows, 'moved_s'):.2f} s and came back "
        f"{median(rows, 'back_s'):.2f} s after it healed"
    ]


def said_of_rounds(rows: list[Config], policies: list[str]) -> list[str]:
    notes = []
    for policy, ports in product(policies, ("planned", "any")):
        mine = [row for row in rows if (row["ports"], row["path_policy"]) == (ports, policy)]
        if mine:
            notes.append(
                f"median of {ports} ports, {policy}: {median(mine, 'share'):.3f} of the uplinks' "
                f"rate; {median(mine, 'mbytes_per_s'):.1f} MB/s arrived"
            )
    return notes


if __name__ == "__main__":
    command()
