"""Measures the accuracy of the simulator: the same transfers in a lab and simulated.

The parameters of the hosts are measured once while they are idle; they are not fitted to results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.lib import fidelity_events, fidelity_lab, fidelity_sim, labs
from bench.lib.common import ROOT, Config
from bench.lib.options import Common, Size, study_options
from bench.lib.study import CPU_BOUND_SHARE, Study, check_variant, conduct
from bench.permutation import derangement
from transport.endpoint import knobs
from transport.ground.units import percent

if TYPE_CHECKING:
    from transport.lab import Lab

LABS = ("slow_paths", "slow_hosts")
SIZES = ("64K", "1M", "8M")
PINGS = 300
GOAL_SHARE, GOAL_BYTES = 0.1, 1 << 20

Pairs = list[tuple[int, int]]


def one(hosts: int) -> Pairs:
    """One transfer from the first host to the last."""
    return [(0, hosts - 1)]


def permutation(hosts: int) -> Pairs:
    """Every host sends to one other host, and receives from one."""
    return list(enumerate(derangement(hosts, 1)))


def incast(hosts: int) -> Pairs:
    """All other hosts send to the first one."""
    return [(source, 0) for source in range(1, hosts)]


def all_to_all(hosts: int) -> Pairs:
    """Every host sends to every other one, all at once."""
    return [(a, b) for a in range(hosts) for b in range(hosts) if a != b]


PATTERNS: dict[str, Callable[[int], Pairs]] = {
    "one": one,
    "permutation": permutation,
    "incast": incast,
    "all_to_all": all_to_all,
}
PAIRWISE = 3  # minimum number of hosts of each pattern except `one`, which needs two

STUDY = Study(
    "fidelity",
    keys=("contender", "lab", "pattern", "size_bytes"),
    measures={"fct_ns": "lower", "error_share": "lower"},
    columns=(
        ("lab", "lab"),
        ("pattern", "pattern"),
        ("flows", "flows"),
        ("size_bytes", "#bytes"),
        ("fct_ns", "wire"),
        ("fct_ns_min", "least"),
        ("fct_ns_max", "most"),
        ("simulated_ns", "simulated"),
        ("simulated_least_ns", "sim least"),
        ("simulated_most_ns", "sim most"),
        ("error_share", "error"),
        ("retransmitted_segments", "sent again"),
    ),
)


def host_of(measured: Config, wire_ns: int) -> Config:
    """The delays that host and caller add, given the simulated network delay `wire_ns`."""
    delay_ns = max(measured["packet_ns_p10"] - wire_ns, 0)
    jitter_ns = max(2 * (measured["packet_ns"] - wire_ns - delay_ns), 0)
    packet_ns = max(measured["packet_ns"], wire_ns)
    return {
        "delay_ns": delay_ns,
        "jitter_ns": jitter_ns,
        "caller_ns": max(measured["caller_ns"] - packet_ns, 0),
        "wire_ns": wire_ns,
    }


class Experiment:
    """The labs, and the transfers to run in each."""

    def __init__(
        self, files: Sequence[Path], patterns: Sequence[str], sizes: Sequence[int], seeds: int
    ) -> None:
        self.labs: dict[Path, Lab] = {}
        for file in files:
            model = labs.read(file)
            if model.hosts < 2 or model.segmentation_offload:
                raise click.UsageError(
                    f"--lab {file}: needs at least two hosts and no segmentation_offload, "
                    "because the simulator sends packets one by one"
                )
            self.labs[file] = labs.build(model)
        self.patterns, self.sizes, self.seeds = patterns, sizes, seeds
        self.hosts: dict[str, Config] = {}  # contender -> its measured delays and [hosts] keys
        self._simulated: dict[tuple[Any, ...], Config] = {}

    def measure(self, kind: str) -> Iterator[Config]:
        """A row for each transfer pattern and size."""
        told = fidelity_lab.knobs(kind, knobs.in_force())
        policies = fidelity_sim.policies_of(told)
        if kind not in self.hosts:
            self.hosts[kind] = self._idle(kind, told, policies)
        host = self.hosts[kind]
        for file, lab in self.labs.items():
            places = labs.places(lab)
            for pattern in self.patterns:
                if pattern != "one" and len(places) < PAIRWISE:
                    continue
                pairs = PATTERNS[pattern](len(places))
                for size in self.sizes:
                    row = fidelity_lab.run(places, kind, pairs, size)
                    endpoint = row.pop("endpoint")
                    key = (kind, file, pattern, size)
                    if key not in self._simulated:
                        keys = fidelity_sim.hosts_keys(told, endpoint, host)
                        self._simulated[key] = fidelity_sim.run(
                            file, keys, policies, pairs, size, self.seeds
                        )
                    yield {
                        "lab": file.stem,
                        "pattern": pattern,
                        "flows": len(pairs),
                        "size_bytes": size,
                        **row,
                        **compared(row["fct_ns"], self._simulated[key], host["caller_ns"]),
                        "same_libraries": same(endpoint, self._simulated[key]),
                        "libraries": endpoint["libraries"],
                    }

    def _idle(self, kind: str, told: dict[str, Any], policies: dict[str, str]) -> Config:
        """Measures the delays of the first lab while it is idle, once for all rows."""
        file, lab = next(iter(self.labs.items()))
        places = labs.places(lab)
        ends = [places[0], places[-1]]
        # Measure over one path, so that new RTT samples soon replace those from connecting.
        measured = fidelity_lab.idle(ends, f"{kind}/paths=1", PINGS)
        endpoint = measured.pop("endpoint")
        nothing = {"delay_ns": 0, "jitter_ns": 0}
        keys = fidelity_sim.hosts_keys(told, endpoint, nothing)
        pairs = [(0, len(places) - 1)]
        ping = fidelity_sim.run(file, keys, policies, pairs, fidelity_lab.PING_BYTES, 1)
        if ping["simulated_ns"] is None:
            raise click.ClickException("a message of 8 bytes did not arrive in the simulator")
        return {**measured, **host_of(measured, ping["simulated_ns"])}


def compared(wire_ns: int, simulated: Config, caller_ns: int) -> Config:
    """Adds the caller's wake-up time to the simulated time, and computes the simulator's error."""
    found = {k: v for k, v in simulated.items() if k not in ("sources", "libraries")}
    for name in ("simulated_ns", "simulated_least_ns", "simulated_most_ns"):
        if found[name] is not None:
            found[name] += caller_ns
    if found["simulated_ns"] is not None:
        found["error_share"] = found["simulated_ns"] / wire_ns - 1
    return found


def same(endpoint: Config, simulated: Config) -> bool:
    """Whether lab and simulator loaded equal policy files."""
    wire: dict[str, str] = endpoint["libraries"]
    files = bool(wire) and all(simulated["libraries"].get(k) == v for k, v in wire.items())
    sources = simulated["sources"]
    return files and all(
        sources.get(family, "").split(":")[0] in (digest, "fixed")
        for family, digest in endpoint["sources"].items()
    )


def notes(rows: Sequence[Config], hosts: dict[str, Config]) -> Iterator[str]:
    """Notes: host delays, how many rows of large messages are accurate, the policies' hashes."""
    for kind, host in hosts.items():
        yield (
            f"{kind}: idle, a packet takes {host['packet_ns'] / 1e3:.0f} us one way and a message "
            f"{host['caller_ns'] / 1e3:.0f} us more in its callers; the simulator uses "
            f"host delay {host['delay_ns'] / 1e3:.0f} us, jitter {host['jitter_ns'] / 1e3:.0f} us"
        )
    large = [row for row in rows if row["size_bytes"] >= GOAL_BYTES]
    count = [row for row in large if row["cpu_share"] <= CPU_BOUND_SHARE]
    near = [row for row in count if abs(row.get("error_share") or 1) <= GOAL_SHARE]
    yield (
        f"1 MB and more, CPU at most {percent(CPU_BOUND_SHARE, 0)}: {len(near)} of "
        f"{len(count)} rows within {percent(GOAL_SHARE, 0)}; "
        f"{len(large) - len(count)} cpu-bound rows do not count"
    )
    files = {name: digest for row in rows for name, digest in row["libraries"].items()}
    agree = all(row["same_libraries"] for row in rows)
    for name, digest in sorted(files.items()):
        yield (
            f"{name}: sha256 {digest[:16]} on the wire and in the simulator"
            if agree
            else (f"{name}: sha256 {digest[:16]} on the wire; the simulator's differs")
        )


@click.command("fidelity")
@click.option(
    *("--pattern", "patterns"),
    type=click.Choice(list(PATTERNS)),
    multiple=True,
    default=list(PATTERNS),
    help="Which hosts send to which; repeat for several; all by default.",
)
@click.option(
    *("-s", "--size", "sizes"),
    type=Size(fidelity_lab.PING_BYTES + 1),
    multiple=True,
    default=SIZES,
    show_default=True,
    help="Bytes of each message.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="Simulated runs of each pattern; each assigns paths differently.",
)
@click.option(
    "--events",
    type=click.IntRange(1_000, 100_000_000),
    help="Instead: record this many decisions of live policies over loopback, and make them "
    "again as the simulator calls policies; allows only --json.",
)
@study_options(many_labs=True, sizes=("64K",), patterns=("one",), seeds=1)
def command(
    patterns: tuple[str, ...],
    sizes: tuple[int, ...],
    seeds: int,
    events: int | None,
    **options: Any,
) -> None:
    """Runs the same transfers in a lab and in the simulator: completion times, and the error."""
    if events is not None:
        fidelity_events.run(events, options["json_path"])
        return
    files = options.pop("lab_file") or ()
    if options.pop("place_path") is not None:
        raise click.UsageError("--place: this bench runs only in labs; leave it out")
    given = Common(**options, places=(), lab=None)
    for name in given.only:
        if name != "weft":
            check_variant(name)
    files = files or [ROOT / "examples" / "labs" / f"{name}.toml" for name in LABS]
    experiment = Experiment(files, patterns, sizes, seeds)
    settings: Config = {"hosts": experiment.hosts, "seeds": seeds}
    settings["labs"] = [file.stem for file in files]
    names = list(dict.fromkeys(given.only)) or ["weft"]
    conduct(
        STUDY,
        given,
        names,
        experiment.measure,
        settings,
        lambda rows: notes(rows, experiment.hosts),
    )
