"""Measures connections between two processes of one host: through shared memory, and beside TCP.

Rates and CPU time of streams, half round trips, and the time to open a connection. Contenders are
weft with WEFT_LOCAL=auto and ring, weft over the network, and TCP, in the same rounds over lo. TCP
runs with every setting of STREAMS, and the best one of each measure is what weft is compared with.

All bytes of a stream are compared after it was timed, and each answer of a round trip. The callers
are Python; buffers are reused, and no byte is looked at while the clock runs. What remains of
Python in the numbers: two calls for each message of a stream (start, wait; TCP one of each MB), 1
to 2 us, most at 64 KB; and in half a round trip three calls of weft (receive, send, wait) beside
two of TCP, with an exception for each look of a spinning receiver that finds nothing. `calls_ns` is
the time of these calls when the answer is there already, with the work that is done in them. The
part `loops` has no Python in it: both ends run loops in C++ that poll, as NCCL does.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from operator import itemgetter
from typing import Any

import click
import numpy as np

from bench.lib import loops
from bench.lib.channels import raise_descriptor_limit
from bench.lib.common import (
    Config,
    document,
    duel,
    emit,
    interruptible,
    json_option,
    print_table,
    rounds,
    verdict,
)
from bench.lib.local_ends import Dialler, End, Kind, Server
from bench.lib.options import Size
from bench.lib.stats import summarised
from bench.lib.traffic import cpu_ns, machine_ns
from transport.ground.units import binary_text, percent

WEFT, RING, NETWORK, TCP = "weft", "weft ring", "weft network", "TCP"
LOCAL = {WEFT: "auto", RING: "ring", NETWORK: "off"}
SIZES = (64 << 10, 1 << 20, 16 << 20)
HOT_BYTES = 1 << 20
TRIP_SIZES = (8, 64 << 10)
WARM_UP = 200  # round trips
READY, READY_S = 256, 0.05  # answers that wait for their exchange, and the time for them to arrive
BLOCK_BYTES = 1 << 20  # contents are made and compared in blocks
ASLEEP = {"engine": 0, "caller": 0}  # WEFT_POLL: a caller sleeps at once
TCP_BUFFER_BYTES = 4 << 20
STREAMS = (
    *(Kind(f"{TCP} spins", spins=True), Kind(f"{TCP} blocks")),
    Kind(f"{TCP} spins, 4 MB", spins=True, buffer_bytes=TCP_BUFFER_BYTES),
    Kind(f"{TCP} blocks, 4 MB", buffer_bytes=TCP_BUFFER_BYTES),
)
KEYS = ("what", "size_bytes", "buffer_bytes", "contender")
MEASURES = {
    "rate_bytes_per_s": "higher",
    "cpu_s_per_gbyte": "lower",
    "half_ns": "lower",
    "calls_ns": "lower",
    "open_ns": "lower",
}
# What the measures of weft are to be, relative to TCP's, and from which size on.
WANTED: dict[tuple[str, str], tuple[float | None, int]] = {
    ("stream", "rate_bytes_per_s"): (1.7, 1 << 20),
    ("stream", "cpu_s_per_gbyte"): (0.6, 1 << 20),
    ("loops", "half_ns"): (0.2, 0),
    ("polling", "half_ns"): (None, 0),
    ("asleep", "half_ns"): (0.9, 0),
    ("open", "open_ns"): (1.5, 0),
}
UNITS = {
    "rate_bytes_per_s": ("rate, GB/s", 1e-9),
    "cpu_s_per_gbyte": ("CPU, s/GB", 1.0),
    "half_ns": ("half round trip, us", 1e-3),
    "open_ns": ("opening, us", 1e-3),
}
COLUMNS = (
    "measure",
    "wanted",
    "measured",
    "rounds",
    "best",
    WEFT,
    RING,
    NETWORK,
    TCP,
    "TCP's setting",
)

Array = np.ndarray[Any, Any]


def kinds(what: str, copiers: Sequence[int] = ()) -> list[Kind]:
    """The contenders of a part of the benchmark: stream, loops, polling, asleep or open.

    copiers: of further contenders in streams, which copy each long message with so many threads.
    """
    poll = {"poll": ASLEEP} if what == "asleep" else {}
    base: Config = {"interfaces": "lo", "engines": 1, "local": LOCAL[WEFT], **poll}
    made = [Kind(name, {**base, "local": local}) for name, local in LOCAL.items()]
    if what == "stream":
        more = [Kind(with_copiers(n), {**base, "poll": {"copiers": n}}) for n in copiers]
        return [*made, *more, *STREAMS]
    if what == "open":
        return [*made, Kind(TCP)]
    spins = what in ("loops", "polling")
    return [*made, Kind(f"{TCP} spins", spins=True) if spins else Kind(f"{TCP} blocks")]


def with_copiers(count: int) -> str:
    return f"{WEFT}, {count} copier{'s' if count > 1 else ''}"


def cells(buffer_bytes: int) -> list[tuple[int, int]]:
    """Sizes of messages and of the buffers that they are sent out of and received into."""
    cold = [(size, buffer_bytes) for size in SIZES if size <= buffer_bytes]
    return list(dict.fromkeys([*cold, (HOT_BYTES, HOT_BYTES)]))


def block(number: int) -> Array:
    return np.random.default_rng(number).integers(0, 1 << 63, BLOCK_BYTES // 8).view(np.uint8)


def filled(buffer_bytes: int) -> Array:
    """The buffer of a sender: no two messages are alike."""
    return np.concatenate([block(number) for number in range(buffer_bytes // BLOCK_BYTES)])


def rows_of(memory: Array, size: int, buffer_bytes: int) -> list[memoryview]:
    return [memory[at : at + size].data for at in range(0, buffer_bytes, size)]


def wrong_blocks(memory: Array, buffer_bytes: int) -> int:
    """How many blocks differ from those of a sender's buffer."""
    blocks = range(buffer_bytes // BLOCK_BYTES)
    held = memory[:buffer_bytes].reshape(-1, BLOCK_BYTES)
    return sum(not np.array_equal(held[number], block(number)) for number in blocks)


class Used:
    """Time and processor time of this process since its creation."""

    def __init__(self) -> None:
        self._begin = (time.perf_counter_ns(), cpu_ns())

    def read(self) -> Config:
        now = (time.perf_counter_ns(), cpu_ns())
        spent = [end - begin for begin, end in zip(self._begin, now, strict=True)]
        return dict(zip(("elapsed_ns", "cpu_ns"), spent, strict=True))


def stream_receiver(pipe: Pipe, config: Config) -> list[Config]:
    memory = np.zeros(config["buffer_bytes"], dtype=np.uint8)
    found = []
    with ExitStack() as stack:
        server = Server(config["kind"], stack)
        pipe.send(("address", server.address))
        end = server.accept()
        for size, buffer_bytes in cells(config["buffer_bytes"]):
            rows = rows_of(memory, size, buffer_bytes)
            end.receive(rows, len(rows))  # untimed
            memory.fill(0)  # every byte of it has to arrive again
            count = config["passes"] * config["buffer_bytes"] // size
            end.meet()
            used = Used()
            end.receive(rows, count)
            spent = used.read()
            end.meet()
            wrong = wrong_blocks(memory, buffer_bytes)
            found.append({"moved_bytes": count * size, "wrong": wrong, **spent})
            end.meet()  # the sender goes on once the bytes are compared
    return found


def stream_sender(_: Pipe, config: Config) -> list[Config]:
    memory = filled(config["buffer_bytes"])
    found = []
    with ExitStack() as stack:
        end = Dialler(config["kind"], config["address"], stack).dial()
        for size, buffer_bytes in cells(config["buffer_bytes"]):
            rows = rows_of(memory, size, buffer_bytes)
            end.send(rows, len(rows))
            end.meet()
            used = Used()
            end.send(rows, config["passes"] * config["buffer_bytes"] // size)
            end.meet()
            found.append(used.read())
            end.meet()
        check_route(config["kind"], end, config["buffer_bytes"])
    return found


def check_route(kind: Kind, end: End, moved_bytes: int) -> None:
    """Raises an error if messages went over the network although they should not have."""
    sent = end.network_bytes()
    if kind.is_local and sent is not None and sent >= moved_bytes:
        raise went_over_the_network(kind)


def went_over_the_network(kind: Kind) -> RuntimeError:
    return RuntimeError(
        f"{kind.name}: messages went over the network: WEFT_LOG_LEVEL=info says why; knobs that"
        " set policies, paths, faults or plans turn shared memory off"
    )


def stream(kind: Kind, settings: Config) -> Iterator[Config]:
    """Streams of every size: rate, and CPU time of both processes together."""
    received, sent = duel(stream_receiver, stream_sender, settings | {"kind": kind}, one_core=False)
    sizes = cells(settings["buffer_bytes"])
    for (size, buffer_bytes), there, here in zip(sizes, received, sent, strict=True):
        moved = there["moved_bytes"]
        yield {
            "size_bytes": size,
            "buffer_bytes": buffer_bytes,
            "rate_bytes_per_s": moved / there["elapsed_ns"] * 1e9,
            "cpu_s_per_gbyte": (there["cpu_ns"] + here["cpu_ns"]) / moved,
            "wrong": there["wrong"],
        }


def echo(pipe: Pipe, config: Config) -> None:
    with ExitStack() as stack:
        server = Server(config["kind"], stack)
        pipe.send(("address", server.address))
        end = server.accept()
        for size in TRIP_SIZES:
            end.echo(memoryview(bytearray(size)), WARM_UP + config["trips"])
        small = [memoryview(bytearray(TRIP_SIZES[0]))]
        if has_ready_answers(config["kind"]):
            end.send(small, READY)
            end.receive(small, READY)
        end.receive(small, 1)


def pings(_: Pipe, config: Config) -> list[Config]:
    found = []
    with ExitStack() as stack:
        end = Dialler(config["kind"], config["address"], stack).dial()
        for size in TRIP_SIZES:
            # Two contents take turns, so that an old answer is wrong.
            data = [np.random.default_rng(seed).bytes(size) for seed in range(2)]
            answer = bytearray(size)
            half_ns, wrong = [], 0
            for index in range(WARM_UP + config["trips"]):
                begin_ns = time.perf_counter_ns()
                end.exchange(data[index % 2], answer)
                half_ns.append((time.perf_counter_ns() - begin_ns) / 2)
                wrong += answer != data[index % 2]
            found.append({"half_ns": statistics.median(half_ns[WARM_UP:]), "wrong": wrong})
        if has_ready_answers(config["kind"]):
            found[0]["calls_ns"] = calls_ns(end)
        check_route(config["kind"], end, config["trips"] * TRIP_SIZES[-1])
        end.send([memoryview(bytes(TRIP_SIZES[0]))], 1)
    return found


def has_ready_answers(kind: Kind) -> bool:
    """Whether messages arrive before their receives are posted."""
    return kind.name != NETWORK


def calls_ns(end: End) -> float:
    """The median time of an exchange whose answer has arrived before."""
    data, answer = bytes(TRIP_SIZES[0]), bytearray(TRIP_SIZES[0])
    time.sleep(READY_S)
    found = []
    for _ in range(READY):
        begin_ns = time.perf_counter_ns()
        end.exchange(data, answer)
        found.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(found)


def trips(kind: Kind, settings: Config) -> Iterator[Config]:
    """Medians of half round trips."""
    _, found = duel(echo, pings, settings | {"kind": kind}, one_core=False)
    for size, row in zip(TRIP_SIZES, found, strict=True):
        yield {"size_bytes": size, "buffer_bytes": size, **row}


def knob_texts(kind: Kind) -> dict[str, str] | None:
    return None if kind.knobs is None else {name: str(value) for name, value in kind.knobs.items()}


def echo_loop(pipe: Pipe, config: Config) -> None:
    end = loops.TripEnd.listen(knob_texts(config["kind"]))
    pipe.send(("address", end.address()))
    end.accept()
    for size in TRIP_SIZES:
        end.echo(size, WARM_UP + config["trips"])


def ping_loop(_: Pipe, config: Config) -> list[Config]:
    end = loops.TripEnd.dial(knob_texts(config["kind"]), config["address"])
    found = []
    for size in TRIP_SIZES:
        round_ns, wrong = end.exchange(size, WARM_UP + config["trips"])
        found.append({"half_ns": statistics.median(round_ns[WARM_UP:]) / 2, "wrong": wrong})
    if config["kind"].is_local and end.used_network():
        raise went_over_the_network(config["kind"])
    return found


def loop_trips(kind: Kind, settings: Config) -> Iterator[Config]:
    """Medians of half round trips between loops in C++."""
    _, found = duel(echo_loop, ping_loop, settings | {"kind": kind}, one_core=False)
    for size, row in zip(TRIP_SIZES, found, strict=True):
        yield {"size_bytes": size, "buffer_bytes": size, **row}


def acceptor(pipe: Pipe, config: Config) -> None:
    raise_descriptor_limit()
    with ExitStack() as stack:
        server = Server(config["kind"], stack)
        pipe.send(("address", server.address))
        server.accept().meet()  # processes that have met
        held = [server.accept() for _ in range(config["opens"])]
        held[-1].meet()
        held[-1].meet()  # closes them only now


def opener(_: Pipe, config: Config) -> Config:
    raise_descriptor_limit()
    with ExitStack() as stack:
        dialler = Dialler(config["kind"], config["address"], stack)
        dialler.dial().meet()
        begin_ns = time.perf_counter_ns()
        held = [dialler.dial() for _ in range(config["opens"])]
        held[-1].meet()  # answered once all are accepted
        open_ns = (time.perf_counter_ns() - begin_ns) / config["opens"]
        held[-1].meet()
        return {"open_ns": open_ns, "wrong": 0}


def opening(kind: Kind, settings: Config) -> Iterator[Config]:
    """The mean time to open a connection, one after another, until the peer has accepted it."""
    _, found = duel(acceptor, opener, settings | {"kind": kind}, one_core=False)
    yield {"size_bytes": 0, "buffer_bytes": 0, **found}


PARTS: dict[str, Callable[[Kind, Config], Iterator[Config]]] = {
    "stream": stream,
    "loops": loop_trips,
    "polling": trips,
    "asleep": trips,
    "open": opening,
}


def measure(
    repeats: int, parts: Sequence[str], settings: Config, copiers: Sequence[int] = ()
) -> Iterator[Config]:
    runs = {f"{what}: {kind.name}": (what, kind) for what in parts for kind in kinds(what, copiers)}
    for round_, name in rounds(repeats, list(runs)):
        what, kind = runs[name]
        for row in PARTS[what](kind, settings):
            yield {"contender": kind.name, "what": what, "round": round_, **row}


def compared(found: Sequence[Config], runs: Sequence[Config]) -> Iterator[Config]:
    """For each measure of weft its ratio to the best of TCP's settings, by medians.

    Also the ratios of single rounds, least and largest, and of the best round of each, which other
    programs disturbed least. Measures whose contenders did not all run are left out.
    """
    groups: dict[tuple[Any, ...], dict[str, Config]] = {}
    for row in found:
        groups.setdefault(tuple(row[key] for key in KEYS[:-1]), {})[row["contender"]] = row
    for (what, size, buffer_bytes), rows in groups.items():
        for measure, better in MEASURES.items():
            peers = [row for name, row in rows.items() if name.startswith(TCP)]
            known = bool(peers) and set(LOCAL) <= set(rows)
            if not known or (what, measure) not in WANTED or measure not in peers[0]:
                continue
            choose = max if better == "higher" else min
            best = choose(peers, key=itemgetter(measure))
            least_disturbed = f"{measure}_{'max' if better == 'higher' else 'min'}"
            each = [
                mine[measure] / theirs[measure]
                for mine, theirs in _same_rounds(runs, rows[WEFT], best)
            ]
            ratio, least = WANTED[what, measure]
            yield {
                "what": what,
                "size_bytes": size,
                "buffer_bytes": buffer_bytes,
                "measure": measure,
                "better": better,
                "wanted": ratio if size >= least else None,
                "ratio": rows[WEFT][measure] / best[measure],
                "ratio_min": min(each),
                "ratio_max": max(each),
                "ratio_of_best": rows[WEFT][least_disturbed]
                / choose(row[least_disturbed] for row in peers),
                **{name: rows[name][measure] for name in LOCAL},
                TCP: best[measure],
                "setting": best["contender"],
            }


def _same_rounds(
    runs: Sequence[Config], mine: Config, theirs: Config
) -> Iterator[tuple[Config, Config]]:
    def of(row: Config) -> dict[int, Config]:
        same = [one for one in runs if all(one[key] == row[key] for key in KEYS)]
        return {one["round"]: one for one in same}

    left, right = of(mine), of(theirs)
    yield from ((left[round_], right[round_]) for round_ in left if round_ in right)


def printed(row: Config) -> list[str]:
    """A line of the table."""
    title, scale = UNITS[row["measure"]]
    size = binary_text(row["size_bytes"])
    if row["what"] == "stream":
        of = f"{size} of {binary_text(row['buffer_bytes'])}: "
    else:
        of = "" if row["what"] == "open" else f"{size}, {row['what']}: "
    sign = ">=" if row["better"] == "higher" else "<="
    return [
        of + title,
        "" if row["wanted"] is None else f"{sign} {row['wanted']}",
        f"{row['ratio']:.2f}",
        f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
        f"{row['ratio_of_best']:.2f}",
        *(f"{row[name] * scale:.3g}" for name in (*LOCAL, TCP)),
        row["setting"].removeprefix(TCP).strip(),
    ]


class Others:
    """What other programs use of the machine, from the creation on; `load`: the load then."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self._begin = self._now()

    def share(self) -> float:
        elapsed_ns, used_ns, own_ns = (
            end - begin for begin, end in zip(self._begin, self._now(), strict=True)
        )
        return max(used_ns - own_ns, 0) / max(elapsed_ns * (os.cpu_count() or 1), 1)

    @staticmethod
    def _now() -> tuple[int, int, int]:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended
        own_ns = cpu_ns() + int((children.ru_utime + children.ru_stime) * 1e9)
        return time.perf_counter_ns(), machine_ns(), own_ns


def said_of_calls(found: Sequence[Config]) -> Iterator[str]:
    """What the calls of an exchange take."""
    taken = [
        f"{row['contender']} {row['calls_ns'] / 1e3:.2f} us"
        for row in found
        if row["what"] == "polling" and row.get("calls_ns") is not None
    ]
    if taken:
        yield f"8 B, polling: the calls of an exchange, if its answer waits: {', '.join(taken)}"


def said_of_copiers(found: Sequence[Config]) -> Iterator[str]:
    """What streams of long messages reach with other numbers of threads."""
    for row in found:
        if row["contender"].startswith(f"{WEFT}, ") and row["size_bytes"] >= HOT_BYTES:
            yield (
                f"{binary_text(row['size_bytes'])} of {binary_text(row['buffer_bytes'])}, "
                f"{row['contender']}: {row['rate_bytes_per_s'] / 1e9:.3g} GB/s, "
                f"{row['cpu_s_per_gbyte']:.3g} CPU s/GB"
            )


@click.command("local")
@click.option(
    "--repeats", default=5, show_default=True, type=click.IntRange(1), help="Interleaved rounds."
)
@click.option(
    "--only", multiple=True, type=click.Choice(list(PARTS)), help="Parts to run; all by default."
)
@click.option(
    "--buffer",
    "buffer_bytes",
    type=Size(BLOCK_BYTES),
    default="256M",
    show_default=True,
    help="Bytes that streams are sent out of and received into, at both ends: a power of two.",
)
@click.option(
    "--passes",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Times that as many bytes are sent and timed.",
)
@click.option(
    "--trips", default=5_000, show_default=True, type=click.IntRange(1), help="Round trips."
)
@click.option(
    "--opens", default=256, show_default=True, type=click.IntRange(1, 4_096), help="Connections."
)
@click.option(
    "--copiers",
    multiple=True,
    type=click.IntRange(1, 8),
    help="Further contenders in streams, which copy with so many threads (WEFT_POLL=copiers).",
)
@json_option
def command(
    repeats: int,
    only: tuple[str, ...],
    copiers: tuple[int, ...],
    json_path: str | None,
    **settings: int,
) -> None:
    """Measures two processes of one host, through shared memory, over the network and over TCP.

    Streams of 64 KB, 1 MB and 16 MB out of and into a buffer that caches do not hold, and of 1 MB
    in caches; half round trips of 8 B and 64 KB, with both ends polling, in C++ (`loops`) and from
    Python, and with both asleep; and opening a connection. weft has one engine.
    """
    if settings["buffer_bytes"] & (settings["buffer_bytes"] - 1):
        raise click.UsageError("--buffer must be a power of two, such as 256M")
    others = Others()
    rows: list[Config] = []
    with interruptible() as cut:
        rows.extend(measure(repeats, only or tuple(PARTS), settings, copiers))
    summary = summarised(rows, KEYS, MEASURES) if rows else []
    ratios = list(compared(summary, rows))
    found = document(
        "local",
        summary,
        keys=list(KEYS),
        measures=MEASURES,
        settings=settings,
        local="",  # each contender has its own
        load_before=round(others.load, 2),
        others_share=round(others.share(), 3),
        ratios=ratios,
        rounds=rows,
    )
    if json_path != "-":
        print_table(COLUMNS, [printed(row) for row in ratios])
    environment = found["environment"]
    notes = [
        "measured: weft's median over TCP's; rounds: the least and the largest ratio of a round; "
        "best: weft's best round over TCP's best",
        *said_of_calls(summary),
        *said_of_copiers(summary),
        f"{environment['cpu']}, {environment['cores']} cores; weft {environment['weft']}, commit "
        f"{environment['commit']}",
        f"load {others.load:.2f} before the run; other programs used "
        f"{percent(found['others_share'], 0)} of the machine meanwhile",
    ]
    emit(found, json_path, (), notes, cut)
    verdict(all(row["wrong"] == 0 for row in rows))


if __name__ == "__main__":
    command()
