"""Measures a flow while paths are cut: how long it stops, and with which error it ends.

Cuts are silent, like a switch that drops everything, and hit paths that carry traffic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from bench.lib import labs, timeline, traffic
from bench.lib.common import Config
from bench.lib.options import PATH_RATE, Common, common, flow_options, study_options
from bench.lib.study import Study, chosen, conduct
from bench.lib.traffic import Flow, Load, Times
from bench.peers import SOCKETS, peer_of
from transport.cli.lab import told

if TYPE_CHECKING:
    from transport.lab import Counters, Lab

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
INTERVAL_S = 0.01
IN_FLIGHT = 16  # messages; short and few, because the bench sees only whole messages arrive
BACK = 0.9  # a flow has recovered when its rate is this share of its rate before the cut
SILENCE_NS = 3_000_000_000  # WEFT_PEER_TIMEOUT=dead of the run in which all paths are cut for good
ONE, ALL, FOR_GOOD = CUTS = ("one path", "all for 1 s", "all for good")
ALL_S = 1.0
ERROR_S = 60.0  # time to wait for the error after all paths are cut for good; busy hosts are slow
SHORTEST_S = 3.0  # shortest run: one second before the cut, and time to recover
STUDY = Study(
    "failover",
    keys=("contender", "cut", "size_bytes"),
    measures={"moved_ns": "lower", "back_ns": "lower", "rate_bytes_per_s": "higher"},
    columns=(
        ("cut", "cut"),
        ("moved_ns", "moved[usec]"),
        ("back_ns", "back[usec]"),
        ("silence_ns", "silent[usec]"),
        ("error_ns", "error[usec]"),
        ("usual_bytes_per_s", "before"),
        ("cut_rate_bytes_per_s", "while cut"),
        ("rate_bytes_per_s", "BW average"),
        ("retransmitted_segments", "resent"),
    ),
)


@dataclass
class Hand:
    """Cuts links during a run, and records the time of each cut and repair."""

    lab: Lab
    cut_s: float  # time of the cut, after the start of the timed window
    heal_s: float | None
    every: bool
    window_ns: int = 0
    moments_ns: list[int] = field(default_factory=list)  # time of each cut and repair
    links: list[str] = field(default_factory=list)

    def act(self, times: Times) -> None:
        self.window_ns = times.window_ns
        before = self.lab.counters()
        self._until(self.cut_s)
        after = self.lab.counters()
        links = labs.uplinks(self.lab)
        carried = {link: grown(before, after, link.replace("-", ">")) for link in links}
        # Cut the busiest link, so that a flow with one path loses that path.
        busiest = sorted(links, key=lambda link: carried[link], reverse=True)
        if not carried[busiest[0]]:
            raise click.ClickException("no traffic on the paths: there is nothing to cut")
        # Read the clock before the cut, because cutting takes some ms.
        self.moments_ns.append(time.perf_counter_ns())
        for link in busiest if self.every else busiest[:1]:
            with told():
                self.lab.cut(link)
            self.links.append(link)
        if self.heal_s is not None:
            self._until(self.heal_s)
            self.moments_ns.append(time.perf_counter_ns())
            self.heal()

    def heal(self) -> None:
        while self.links:
            with told():
                self.lab.heal(self.links.pop())

    def _until(self, seconds: float) -> None:
        left_s = seconds - (time.perf_counter_ns() - self.window_ns) / 1e9
        if left_s > 0:
            time.sleep(left_s)


def grown(before: dict[str, Counters], after: dict[str, Counters], direction: str) -> int:
    return after[direction].bytes - before[direction].bytes


def of_cut(found: Config, hand: Hand, load: Load, paths: int) -> Config:
    """Evaluates the timeline around a cut and its repair."""
    interval_ns = int(load.duration_s * 1e9) // load.intervals
    (counts,) = found["timeline_messages"]
    rates = [round(count * load.size_bytes * 1e9 / interval_ns) for count in counts]
    cut_ns, heal_ns = (moment_ns - hand.window_ns for moment_ns in hand.moments_ns)
    usual = timeline.usual(rates, interval_ns, cut_ns)
    if not usual:
        raise click.ClickException("nothing arrived before the cut: give a longer -D")
    during = rates[cut_ns // interval_ns + 1 : heal_ns // interval_ns]
    found |= {
        "timeline_bytes_per_s": rates,
        "interval_ns": interval_ns,
        "events_ns": [cut_ns, heal_ns],
        "usual_bytes_per_s": usual,
        "cut_rate_bytes_per_s": sum(during) / max(len(during), 1),
        "silence_ns": timeline.silence_ns(rates, interval_ns),
        "back_ns": timeline.recovered_ns(rates, interval_ns, heal_ns, BACK * usual),
    }
    if not hand.every:
        # The expected rate after the cut: the rate before, or the remaining capacity if less.
        left = min(usual, labs.capacity_bytes_per_s(hand.lab) * (paths - 1) / paths)
        found["moved_ns"] = timeline.dipped_ns(rates, interval_ns, cut_ns, heal_ns, BACK * left)
    return found


def run(name: str, cut: str, given: Common, load: Load) -> Config:
    """Runs one flow with one cut."""
    lab = given.lab
    assert lab is not None  # common() has built the lab
    peer = peer_of(name)
    length_s = load.duration_s
    heal_s = None if cut == FOR_GOOD else length_s / 3 + (length_s / 3 if cut == ONE else ALL_S)
    hand = Hand(lab, length_s / 3, heal_s, cut != ONE)
    kind = peer.kind
    if cut == FOR_GOOD:
        kind += f"/peer_timeout=dead={SILENCE_NS}"
    row: Config = {"cut": cut, "size_bytes": load.size_bytes}
    try:
        flow = Flow(0, 1, kind, peer.streams)
        whole = replace(load, duration_s=length_s + ERROR_S) if cut == FOR_GOOD else load
        found = traffic.run([flow], labs.across(lab), whole, hand.act)
    except click.ClickException as error:
        if cut != FOR_GOOD or not hand.moments_ns or "PeerDeadError" not in error.message:
            raise
        error_ns = time.perf_counter_ns() - hand.moments_ns[0]
        return row | {"error": error.message, "error_ns": error_ns, "wrong": None}
    finally:
        hand.heal()
    if cut == FOR_GOOD:
        raise click.ClickException(f"{name}: the flow got no error although all paths were cut")
    return of_cut(found, hand, load, len(labs.uplinks(lab))) | row


@click.command("failover")
@flow_options("64K", duration_s=6.0)
@click.option("--cut", "cuts", type=click.Choice(CUTS), multiple=True, help="All three by default.")
@PATH_RATE
@study_options(duration_s=1.5, warmup_s=0.2, only=("weft", "tcp-cubic"), cuts=(ONE,))
def command(
    size: int,
    duration_s: float,
    warmup_s: float,
    cuts: tuple[str, ...],
    path_rate: int,
    **options: Any,
) -> None:
    """Measures one flow in three runs: one path cut and restored, all cut for 1 s, all for good.

    Needs root. `moved`: time from the cut until the rate is 0.9 of the rate before the cut,
    or of the remaining capacity if that is less; `back`: time from the repair until the rate is
    0.9 of the rate before the cut. "all for good" runs only with weft, whose connection must end
    with an error after WEFT_PEER_TIMEOUT=dead, 3 s here.
    """
    if duration_s < SHORTEST_S and ALL in (cuts or CUTS):
        raise click.UsageError(f"-D {duration_s:g}: {ALL!r} needs {SHORTEST_S:g} s at least")
    given = common(options, labs.equal_paths(path_rate))
    names = chosen(given, USUAL, list(SOCKETS))
    load = Load(size, duration_s, warmup_s, int(duration_s / INTERVAL_S), IN_FLIGHT, 1)

    def measure(name: str) -> Iterator[Config]:
        for cut in cuts or CUTS:
            if cut != FOR_GOOD or name.startswith("weft"):
                yield run(name, cut, given, load)

    settings = {"duration_s": duration_s, "warmup_s": warmup_s, "peer_dead_ns": SILENCE_NS}
    conduct(STUDY, given, names, measure, settings)
