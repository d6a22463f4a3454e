"""Measures NCCL over weft and over its Socket transport on this host: collectives and training.

A run over weft counts only if NCCL's own log says `via NET/weft`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bench.lib.common import (
    ROOT,
    Config,
    document,
    emit,
    interruptible,
    json_option,
    median,
    rounds,
    verdict,
)
from bench.lib.nccl_hosts import Hosts, hosts, newly, shares
from transport import native
from transport.ground import toml
from transport.ground.collectives import bus_factor

RUN_S_MAX = 240.0
TURNS = "ranks took turns on a GPU: times say little (remedy: nvidia-cuda-mps-control -d)"
SETUP_BYTES = 64 << 20  # more than ranks exchange to find each other
OPERATIONS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter")
SIZES = (8, 1_024, 65_536, 1 << 20, 16 << 20, 128 << 20, 512 << 20)
# NVLink multicast would bypass the transport for reductions.
UNICAST = {"NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NCCL_COLLNET_ENABLE": "0"}
NET_ONLY = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", **UNICAST}
SOCKET = NET_ONLY | {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
CTAS = {"NCCL_MIN_CTAS": "4", "NCCL_MAX_CTAS": "4"}
CTAS_8 = {"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "8"}
FIXED = {**CTAS, "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
LOCAL = ("SHM", "NVLink")  # contenders that NCCL uses only between ranks of one host
MEMORY = (
    "weft local",
    "weft local 8 CTAs",
    "weft ring",
)  # contenders of weft that need ranks on one host
TRAINED = (("weft", "weft local", "Socket"), ("weft", "Socket"))  # on one host, and in a lab
NAMED_ONLY = ("weft xdp",)  # needs NICs, such as those of a lab, and rights
CHOICES = (
    ("Ring", "LL", 0),
    ("Ring", "LL", 1),
    ("Ring", "LL", 4),
    ("Tree", "LL", 0),
    ("Ring", "Simple", 1),
    ("Ring", "Simple", 2),
    ("Ring", "Simple", 4),
    ("Ring", "Simple", 8),
    ("Tree", "Simple", 0),
)
COLUMNS = ("contender", "operation", "size_bytes", "time_us", "algbw", "busbw", "worst", "wrong")
TRAIN_COLUMNS = (
    "contender",
    "steps",
    "step_ms",
    "first_loss_bits",
    "last_loss_bits",
    "loopback_bytes",
)


def threads(count: int, each: int) -> dict[str, str]:
    return SOCKET | {"NCCL_SOCKET_NTHREADS": str(count), "NCCL_NSOCKS_PERTHREAD": str(each)}


def weft() -> dict[str, str]:
    return NET_ONLY | {
        "NCCL_NET": "weft",
        "NCCL_NET_PLUGIN": str(native.PLUGIN_PATH),
        "NCCL_NET_PLUGIN_REF_COUNT": "1",  # as `weft run` sets it
        "WEFT_INTERFACES": os.environ.get("WEFT_INTERFACES", "lo"),
        "WEFT_LOCAL": os.environ.get("WEFT_LOCAL", "off"),  # also for programs of tests/device
    }


def choices() -> dict[str, dict[str, str]]:
    """weft with a fixed algorithm, protocol and number of channels (0: NCCL chooses)."""
    made = {}
    for algorithm, protocol, channels in CHOICES:
        # Only an AllReduce can use a tree; other operations then use a ring.
        algorithms = "ring" if algorithm == "Ring" else "ring;allreduce:tree"
        fixed = {"NCCL_ALGO": algorithms, "NCCL_PROTO": protocol}
        if channels:
            fixed |= {"NCCL_MIN_CTAS": str(channels), "NCCL_MAX_CTAS": str(channels)}
        made[f"weft {algorithm} {protocol} {channels}"] = weft() | fixed
    return made


def contenders() -> dict[str, dict[str, str]]:
    """Contender -> its environment. NVLink and SHM are included for reference."""
    return {
        "weft": weft(),
        "weft local": weft() | {"WEFT_LOCAL": "auto"},
        "weft local 8 CTAs": weft() | {"WEFT_LOCAL": "auto"} | CTAS_8,
        "weft ring": weft() | {"WEFT_LOCAL": "ring"},
        "weft xdp": weft() | {"WEFT_DATAPATH": "xdp"},
        "weft grant": weft() | {"WEFT_CREDIT_POLICY": "grant"},
        "weft grouped": weft() | {"WEFT_NCCL_RECEIVES_MAX": "8"},
        "Socket": SOCKET,
        "Socket 2x1": threads(2, 1),
        "Socket 2x2": threads(2, 2),
        "Socket 4x4": threads(4, 4),
        "Socket 4x4 4 CTAs": threads(4, 4) | CTAS,
        "Socket 4x4 8 CTAs": threads(4, 4) | CTAS_8,
        "Socket 8x8": threads(8, 8),
        "SHM": {"NCCL_P2P_DISABLE": "1", **UNICAST},
        "NVLink": UNICAST,
    } | choices()


def tuned(rules: Path) -> dict[str, dict[str, str]]:
    """weft with rules of `weft estimate tune`."""
    return {"weft tuned": weft() | {"WEFT_TUNE": str(rules.resolve())}}


def driver() -> str:
    """The version of the NVIDIA driver, or unknown."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.split("\n", 1)[0].strip()


def mps_runs() -> bool:
    """Whether NVIDIA's Multi-Process Service runs: with it, processes share a GPU without turns."""
    words = ["nvidia-cuda-mps-control"]
    try:
        asked = subprocess.run(
            words, input="get_server_list\n", capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return asked.returncode == 0


def check_host(gpus: int) -> None:
    """Raises an error if the ranks could not run here."""
    if find_spec("torch") is None:
        raise click.ClickException("needs PyTorch with CUDA: pip install torch")
    words = ["nvidia-smi", "--list-gpus"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise click.ClickException(f"no GPU found: nvidia-smi failed ({error})") from error
    if (found := len(done.stdout.splitlines())) < gpus:
        raise click.ClickException(f"this host has {found} GPUs: lower --gpus")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def environment(
    name: str, variables: dict[str, str], ranks: int, folder: Path, where: Hosts
) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    if not name.startswith("weft"):
        clean = {k: v for k, v in clean.items() if not k.startswith("WEFT_")}
    clean |= variables
    # Contenders are defined for the interface lo: replace it by the interface of the lab's hosts.
    interfaces = ("NCCL_SOCKET_IFNAME", "WEFT_INTERFACES")
    clean |= {key: where.interface for key in interfaces if clean.get(key) == "lo"}
    clean |= {"MASTER_ADDR": where.address, "MASTER_PORT": str(free_port())}
    clean |= {"WORLD_SIZE": str(ranks), "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
    clean |= {"NCCL_DEBUG_FILE": str(folder / "nccl.%p.log"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return clean


def of_rank(rank: int, ranks: int, gpus: int) -> dict[str, str]:
    """A rank's own environment. NCCL refuses two ranks of a host on a GPU: each gets a host id."""
    own = {"RANK": str(rank), "BENCH_GPU": str(rank % gpus)}
    return own | ({"NCCL_HOSTID": f"host{rank}"} if ranks > gpus else {})


def run(
    name: str,
    variables: dict[str, str],
    gpus: int,
    task: Config,
    where: Hosts | None = None,
    module: str = "bench.lib.nccl_rank",
    ranks: int | None = None,
) -> list[Config]:
    """Runs the module in a process per rank, and returns what they print; leaves none running.

    There is a rank per GPU, or `ranks` of them, distributed over the GPUs in turn.
    """
    where = where or Hosts()
    count = ranks or gpus
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        base = environment(name, variables, count, folder, where)
        command = [sys.executable, "-m", module, json.dumps(task)]
        outputs = [(folder / f"rank{rank}").open("w+") for rank in range(count)]
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=base | of_rank(rank, count, gpus),
                stdout=out,
                stderr=out,
                preexec_fn=where.enter(rank),
            )
            for rank, out in enumerate(outputs)
        ]
        try:
            await_all(name, processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
            said = []
            for out in outputs:
                out.seek(0)
                said.append(out.read())
                out.close()
        if any(process.returncode for process in processes):
            last = "\n".join(text[-1_500:] for text in said)
            raise click.ClickException(f"{name}: a rank failed\n{last}")
        if count > 1:
            prove(name, folder)
        found = [line[7:] for text in said for line in text.splitlines() if line[:7] == "RESULT "]
        return [json.loads(line) for line in found]


def await_all(name: str, ranks: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + RUN_S_MAX
    while any(process.poll() is None for process in ranks):
        if any(process.returncode for process in ranks):
            return
        if time.monotonic() > until:
            raise click.ClickException(f"{name}: not done within {RUN_S_MAX:.0f} s")
        time.sleep(0.1)


def prove(name: str, folder: Path) -> None:
    """Checks in NCCL's log that every channel uses the expected network, or raises an error."""
    log = "".join(path.read_text(errors="replace") for path in folder.glob("nccl.*.log"))
    seen = set(re.findall(r"via (NET/\w+|SHM|P2P)", log))
    kind = name.split()[0]
    expected = {"SHM": "SHM", "NVLink": "P2P"}.get(kind, f"NET/{kind}")
    if seen != {expected}:
        raise click.ClickException(f"{name}: NCCL used {seen or 'no network'}, not {expected}")


def not_in_memory(rows: list[Config], loopback_bytes: int) -> str:
    """Why messages cannot have passed through memory, or "": they went over loopback."""
    moved_bytes = sum(row["size_bytes"] * row["calls"] for row in rows)
    if loopback_bytes < moved_bytes // 2 + SETUP_BYTES:
        return ""
    return f"{loopback_bytes} bytes went over loopback, for operations of {moved_bytes} bytes"


@dataclass
class Measured:
    """The results of the rounds, perhaps incomplete."""

    rows: list[Config] = field(default_factory=list)
    failed: list[Config] = field(default_factory=list)  # contenders that crashed
    facts: Config = field(default_factory=dict)


def measure(
    gpus: int,
    ranks: int,
    repeats: int,
    task: Config,
    known: dict[str, dict[str, str]],
    where: Hosts,
    found: Measured,
) -> None:
    """Measures run by run into `found`, so that an interrupt keeps the finished runs."""
    for round_, name in rounds(repeats, list(known)):
        before, dropped, looped = where.carried(), where.dropped(), where.loopback_bytes()
        said: Config = {"contender": name, "round": round_}
        try:
            (result,) = run(name, known[name], gpus, task, where, ranks=ranks)
        except click.ClickException as error:
            found.failed.append(said | {"failed": error.message})
            continue
        found.facts |= result["facts"] | {"cores": os.cpu_count()}
        said["path_shares"] = shares(before, where.carried())
        said["queue_drops"] = newly(dropped, where.dropped())
        said["loopback_bytes"] = where.loopback_bytes() - looped
        if name in MEMORY and (why := not_in_memory(result["found"], said["loopback_bytes"])):
            found.failed.append(said | {"failed": f"{name}: {why}"})
            continue
        for row in result["found"]:
            busbw = row["algbw"] * bus_factor(row["operation"], ranks)
            found.rows.append(said | row | {"busbw": busbw})


def medians(rows: list[Config]) -> list[Config]:
    """One row per contender, operation and size."""
    groups: dict[tuple[Any, ...], list[Config]] = {}
    for row in rows:
        key = (row["contender"], row["operation"], row["size_bytes"])
        groups.setdefault(key, []).append(row)
    return [
        dict(zip(COLUMNS[:3], key, strict=True))
        | {column: median(mine, column) for column in COLUMNS[3:6]}
        | {"worst": min(row["busbw"] for row in mine)}
        | {"wrong": sum(row["wrong"] for row in mine)}
        for key, mine in groups.items()
    ]


def ratios(summary: list[Config]) -> list[Config]:
    """weft's speed / speed of NCCL's Socket transport, with its defaults and its best settings."""
    found = []
    for row in summary:
        if not row["contender"].startswith("weft"):
            continue
        same = [r for r in summary if all(r[c] == row[c] for c in ("operation", "size_bytes"))]
        rivals = {r["contender"]: r["busbw"] for r in same if r["contender"].startswith("Socket")}
        if not rivals:
            continue
        best = max(rivals, key=lambda name: rivals[name])
        line = {column: row[column] for column in COLUMNS[:3]} | {"best": best}
        line["over_best"] = row["busbw"] / rivals[best]
        line["over_default"] = row["busbw"] / rivals["Socket"] if "Socket" in rivals else None
        found.append(line)
    return found


def notes_of(found: list[Config]) -> list[str]:
    return [
        f"{r['contender']}, {r['operation']} {r['size_bytes']} B: "
        f"{r['over_best']:.2f}x Socket's best ({r['best']})"
        + (f", {r['over_default']:.2f}x its default" if r["over_default"] else "")
        for r in found
    ]


def compare_training(
    kind: str,
    gpus: int,
    ranks: int,
    known: dict[str, dict[str, str]],
    where: Hosts,
    json_path: str | None,
) -> None:
    """Trains over each network; losses must be equal bit for bit."""
    rows, losses, facts = [], {}, {}
    for _, name in rounds(1, list(known)):
        looped = where.loopback_bytes()
        task = {"train": kind, "sizes": []}
        results = run(name, known[name] | FIXED, gpus, task, where, ranks=ranks)
        facts = results[0]["facts"]
        losses[name] = sorted(result["found"]["loss_bits"] for result in results)
        bits = losses[name][0]
        row = {"contender": name, "steps": len(bits), "step_ms": results[0]["found"]["step_ms"]}
        row |= {"first_loss_bits": f"{bits[0]:08x}", "last_loss_bits": f"{bits[-1]:08x}"}
        rows.append(row | {"loopback_bytes": where.loopback_bytes() - looped})
    same = all(one == losses[rows[0]["contender"]] for one in losses.values())
    more = {"gpus": gpus, "ranks": ranks, "equal": same, "losses": losses, "driver": driver()}
    words = "equal" if same else "DIFFERENT"
    found = document(f"nccl-{kind}", rows, **more, **facts)
    emit(found, json_path, TRAIN_COLUMNS, [f"losses of all ranks and steps: {words} bit for bit"])
    verdict(same)


def chosen(
    only: tuple[str, ...], fixed: bool, rules: Path | None, shared: bool, apart: bool
) -> dict[str, dict[str, str]]:
    """The contenders that the options ask for.

    shared: several ranks share a GPU. apart: each rank is on a host of a lab.
    """
    known = contenders() | (tuned(rules) if rules else {})
    if apart:
        if near := [name for name in only if name in MEMORY]:
            raise click.UsageError(f"contender {near[0]} needs ranks on one host: omit it or --lab")
        known = {name: variables for name, variables in known.items() if name not in MEMORY}
    if shared:  # each rank counts as a host of its own, so NCCL uses neither SHM nor NVLink
        if local := [name for name in only if name in LOCAL]:
            raise click.UsageError(f"contender {local[0]} needs a GPU per rank: omit it or --ranks")
        known = {name: variables for name, variables in known.items() if name not in LOCAL}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.UsageError(f"no contender {unknown[0]!r}; choose from {', '.join(known)}")
    left_out = (*choices(), *NAMED_ONLY)
    wanted = only or (["weft", *choices()] if fixed else [n for n in known if n not in left_out])
    if rules:
        wanted = (*wanted, "weft tuned")
    return {name: variables for name, variables in known.items() if name in wanted}


@click.command("nccl")
@click.option("--gpus", default=2, show_default=True, type=click.IntRange(1), help="GPUs to use.")
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Number of ranks; by default one per GPU. "
    "If there are more, several share a GPU. Then times say something only if NVIDIA's "
    "Multi-Process Service runs (nvidia-cuda-mps-control -d): else the ranks take turns.",
)
@click.option("--repeats", default=5, show_default=True, help="Interleaved rounds.")
@click.option("--size", "sizes", multiple=True, type=int, default=SIZES, help="Bytes of a buffer.")
@click.option(
    "--only", multiple=True, help="Contenders by name; by default all but those of --choices."
)
@click.option(
    "--choices",
    "fixed",
    is_flag=True,
    help="weft, and weft with fixed algorithms, protocols, channels (for weft estimate tune).",
)
@click.option(
    "--tuned",
    "rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rules of `weft estimate tune`; adds weft with them, as contender `weft tuned`.",
)
@click.option(
    "--lab",
    "lab_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A lab file: each rank runs on its own host, across the lab's paths; needs root.",
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice(OPERATIONS),
    default=OPERATIONS[:2],
    show_default=True,
)
@click.option(
    "--ddp",
    "kind",
    flag_value="ddp",
    help="Compare losses of DDP over weft, its memory and Socket.",
)
@click.option("--fsdp", "kind", flag_value="fsdp", help="Compare losses of FSDP likewise.")
@json_option
def command(
    gpus: int,
    ranks: int | None,
    repeats: int,
    sizes: tuple[int, ...],
    only: tuple[str, ...],
    fixed: bool,
    rules: Path | None,
    lab_file: Path | None,
    operations: tuple[str, ...],
    kind: str | None,
    json_path: str | None,
) -> None:
    """Measures NCCL collectives over weft and Socket, without P2P and SHM; checks every result."""
    if not native.PLUGIN_PATH.exists():
        raise click.ClickException(f"no plugin ({native.PLUGIN_PATH}): run make build")
    ranks = ranks or gpus
    if ranks < gpus:
        raise click.UsageError(
            f"{gpus} GPUs need {gpus} ranks, not {ranks}: lower --gpus or raise --ranks"
        )
    if kind is not None:
        only = only or TRAINED[lab_file is not None]
    known = chosen(only, fixed, rules, ranks > gpus, lab_file is not None)
    check_host(gpus)
    if kind is not None:
        with hosts(lab_file, ranks) as where:
            compare_training(kind, gpus, ranks, known, where, json_path)
        return
    measured = Measured()
    with interruptible() as cut, hosts(lab_file, ranks) as where:
        task = {"train": "", "sizes": list(sizes), "operations": list(operations)}
        measure(gpus, ranks, repeats, task, known, where, measured)
    facts = measured.facts
    facts |= {"rules": rules.read_text().splitlines()} if rules else {}
    facts |= {"lab": toml.read(lab_file)} if lab_file is not None else {}
    summary = medians(measured.rows)
    found_ratios = ratios(summary)
    notes = notes_of(found_ratios)
    notes += [f"failed: {one['contender']}, round {one['round']}" for one in measured.failed]
    facts |= {"gpus": gpus, "ranks": ranks, "repeats": repeats, "driver": driver()}
    if ranks > gpus:
        facts |= {"mps": mps_runs()}
        notes += [] if facts["mps"] else [TURNS]
    found = document("nccl", summary, ratios=found_ratios, **facts)
    found |= {"rounds": measured.rows, "failed": measured.failed}
    emit(found, json_path, COLUMNS, notes, cut)
    verdict(all(row["wrong"] == 0 for row in measured.rows))
    if measured.failed:
        raise click.ClickException(measured.failed[0]["failed"])


if __name__ == "__main__":
    command()
