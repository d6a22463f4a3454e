"""Tells processes that waited for a CPU core from slow NICs, by what the kernel counted of them.

A process sends and acknowledges its packets itself, so if it has no core its NIC seems to be slow.
Its trace has an event cpu_wait for each second: how long the thread that waited most was ready to
run and had no core. Live diagnosis reads the same number of the kernel (live/cores.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import LOST, SHARE, Finding, Place, graded
from transport.diagnose.slower import NO_PLACE, QUERY as STEPPED, SLOW_PART, Slowdown
from transport.ground.units import percent

# A process is short of CPU if a thread of it waited for this share of the time. Three ranks on two
# cores without other load wait for 5 to 8 %, and one busy loop beside them makes it 12 % or more.
STARVED = 0.1
CALM = 0.03  # a process that waited for less had its cores
STARVED_MIN = 2  # this many processes of a host that lack cores are a fault of the host
GROWN = 1.5  # a lack of cores is new if it is this many times what it was before
# What a lack of cores looks like.
SLOW = ("non_communication_slow", "communication_slow")
ALIKE = (*SLOW, "congestion", "network_loss")  # as suspicions
PLACES = ("rank", "nic", "pair", "host")
NAMED_MAX = 4
QUERY = (
    "SELECT process, sum(value) / 1e6 / sum(status) AS share, max(value / 1e6 / status) AS most, "
    "count(*) FROM events WHERE what = 'cpu_wait' GROUP BY ALL ORDER BY share DESC"
)
ADVICE = (
    "See what takes its cores (top -H; nr_throttled in the cgroup's cpu.stat), and give the job "
    "more: fewer processes a host, fewer engines (WEFT_ENGINES), or other load elsewhere."
)

# (process, from, to) -> the share of this time for which a thread of it had no core; None: unknown.
ShareOf = Callable[[int, int, int], float | None]


def recorded(facts: Facts) -> ShareOf:
    """The shares by the events of the trace; all of them are unknown if it has none."""
    if not len(facts.cpu_waits.get("source", ())):
        return lambda process, from_ns, to_ns: None
    order = np.argsort(facts.cpu_waits["source"], kind="stable")
    waits = {name: column[order] for name, column in facts.cpu_waits.items()}
    until_ns, over_ns = waits["time_ns"], np.maximum(waits["over_ns"], 1)
    share = np.minimum(waits["waited_ns"] / over_ns, 1.0)
    first = np.searchsorted(waits["source"], np.arange(len(facts.processes) + 1))

    def share_of(process: int, from_ns: int, to_ns: int) -> float | None:
        mine = slice(first[process], first[process + 1])
        begin_ns = np.maximum(until_ns[mine] - over_ns[mine], from_ns)
        inside_ns = (np.minimum(until_ns[mine], to_ns) - begin_ns).clip(0)
        return float(np.average(share[mine], weights=inside_ns)) if inside_ns.any() else None

    return share_of


def waited_ns(facts: Facts, process: int, from_ns: int, to_ns: int) -> int:
    """For how long a thread of a process had no core, in all seconds that a time is part of.

    The trace does not tell when in these seconds; 0 if it tells nothing.
    """
    waits = facts.cpu_waits
    if not len(waits.get("source", ())):
        return 0
    until_ns = waits["time_ns"]
    during = (until_ns > from_ns) & (until_ns - waits["over_ns"] < to_ns)
    return int(waits["waited_ns"][during & (waits["source"] == process)].sum())


def had_cores(facts: Facts, one: Finding) -> bool:
    """Whether the processes of a finding are known to have had their cores at its time."""
    mine, share_of = _processes_of(facts, one), recorded(facts)
    shares = [share_of(process, one.from_ns, one.to_ns) for process in mine]
    return bool(shares) and all(share is not None and share < CALM for share in shares)


def with_short_of_cpu(
    facts: Facts, share_of: ShareOf, found: Sequence[Finding], *, past: bool = True
) -> list[Finding]:
    """The findings; slow places whose processes had no core become one of the host or the process.

    On a host without free cores, late ranks and slow messages alternate, so it is one fault. past:
    whether share_of knows the time before a finding.
    """
    kept: list[Finding] = []
    short: dict[tuple[int, ...], list[Finding]] = {}
    for one in found:
        processes = _short_at(facts, share_of, one, past)
        if processes:
            short.setdefault(processes, []).append(one)
        else:
            kept.append(one)
    return kept + [_short(facts, share_of, mine, of) for mine, of in _joined(facts, short).items()]


def explains(share: float, before: float | None, lost: float | None) -> bool:
    """Whether a lack of cores explains what is slow.

    share: of the time for which a thread had no core. before: the same until it became slow. lost:
    the share of the time that is lost by it; None: unknown. A lack that was there before makes all
    vary by as much. One that came with the slowness also delays others, who wait in turn.
    """
    grown = before is None or share >= GROWN * before
    return share >= STARVED and (lost is None or lost <= (share / SLOW_PART if grown else share))


def _lost(one: Finding) -> float | None:
    """The share of its time that a finding cost; None: unknown."""
    if one.lost_ns is not None and one.to_ns > one.from_ns:
        return one.lost_ns / (one.to_ns - one.from_ns)
    lost = one.more.get(LOST)
    return None if lost is None else float(lost)


def _joined(
    facts: Facts, short: dict[tuple[int, ...], list[Finding]]
) -> dict[tuple[int, ...], list[Finding]]:
    """Processes that were short of CPU -> the findings, those of one host together."""
    made: dict[str, tuple[set[int], list[Finding]]] = {}
    for processes, of in short.items():
        known = made.setdefault(facts.processes[processes[0]].host, (set(), []))
        known[0].update(processes)
        known[1].extend(of)
    return {tuple(sorted(mine)): of for mine, of in made.values()}


def _short_at(facts: Facts, share_of: ShareOf, one: Finding, past: bool) -> tuple[int, ...]:
    """The processes of one host that were short of CPU and explain the finding; empty: none."""
    kinds = SLOW if one.certain else ALIKE
    if one.kind not in kinds or one.place.kind not in PLACES:
        return ()
    shares = _shares(facts, share_of, one.from_ns, one.to_ns)
    own = _processes_of(facts, one)
    mine = {at: shares[at] for at in own if at in shares}
    if one.kind == "non_communication_slow" and not facts.has_operations:
        # Without NCCL, a rank is late as well if the peer that it waits for is.
        least = GROWN * max((share_of(at, one.from_ns, one.to_ns) or 0.0 for at in own), default=0)
        mine |= {at: shares[at] for at in _peers_of(facts, own) if shares.get(at, 0.0) > least}
    first_ns, lost = _first_ns(facts), _lost(one)
    before = {at: share_of(at, first_ns, one.from_ns) if past else None for at in mine}
    mine = {at: share for at, share in mine.items() if explains(share, before[at], lost)}
    # What is compared with the time before is explained by a new lack only.
    if one.query == STEPPED:
        mine = {at: share for at, share in mine.items() if share >= GROWN * (before[at] or 0.0)}
    if not mine:
        return ()
    host = facts.processes[max(mine, key=lambda at: mine[at])].host
    return tuple(sorted(at for at in shares if facts.processes[at].host == host))


def _shares(facts: Facts, share_of: ShareOf, from_ns: int, to_ns: int) -> dict[int, float]:
    """The processes that were short of CPU in a time, with their shares."""
    every = {at: share_of(at, from_ns, to_ns) for at in range(len(facts.processes))}
    return {at: one for at, one in every.items() if one is not None and one >= STARVED}


def _first_ns(facts: Facts) -> int:
    return min((one.first_ns for one in facts.processes), default=0)


def _processes_of(facts: Facts, one: Finding) -> list[int]:
    """The processes at the place of a finding, and at those that cannot be told from it."""
    texts = (one.place.name, *one.place.candidates)
    made = []
    for at, process in enumerate(facts.processes):
        name = facts.name(at)
        ranked = process.rank >= 0 and process.rank in one.place.ranks
        named = {name, f"NIC of {name}"} & set(texts)
        if ranked or named or (process.rank < 0 and any(name in text for text in texts)):
            made.append(at)
    return made


def _peers_of(facts: Facts, processes: Sequence[int]) -> list[int]:
    """The processes that exchange messages with one of these."""
    source, target = facts.edges["source"], facts.edges["target"]
    found = np.union1d(
        target[np.isin(source, processes)], source[np.isin(target, processes)]
    ).tolist()
    return [int(at) for at in found if at not in processes]


def _short(
    facts: Facts, share_of: ShareOf, processes: tuple[int, ...], of: Sequence[Finding]
) -> Finding:
    """The finding of a host with too few free cores, or of one process. of: what it replaces."""
    worst = max(of, key=lambda one: (one.certain, one.confidence))
    from_ns, to_ns = min(one.from_ns for one in of), max(one.to_ns for one in of)
    shares = [share_of(at, from_ns, to_ns) or 0.0 for at in processes]
    slowed = list(dict.fromkeys(one.place.name for one in of))
    place = _place(facts, processes)
    others = [one.place.name for one in of if one.certain and one.place.kind in ("nic", "pair")]
    made = replace(
        worst,
        kind="non_communication_slow",
        place=replace(place, candidates=tuple(dict.fromkeys(others))),
        from_ns=from_ns,
        to_ns=to_ns,
        evidence=f"{_told(facts, processes, shares)} It slows {', '.join(slowed[:NAMED_MAX])}: "
        f"{worst.evidence}",
        advice=ADVICE,
        more={**worst.more, SHARE: round(max(shares), 3)},
    )
    return graded(made, any(one.certain for one in of))


def _place(facts: Facts, processes: Sequence[int]) -> Place:
    ranks = tuple(facts.processes[at].rank for at in processes)
    if len(processes) >= STARVED_MIN:
        return Place("host", f"host {facts.processes[processes[0]].host}", ranks)
    return Place("rank", facts.name(processes[0]), ranks)


def _told(facts: Facts, processes: Sequence[int], shares: Sequence[float]) -> str:
    host = facts.processes[processes[0]].host
    worst = percent(max(shares), 0)
    if len(processes) < STARVED_MIN:
        name = facts.name(processes[0])
        return f"A thread of {name} was ready to run and had no core for {worst} of the time."
    many = sum(one.host == host for one in facts.processes)
    return (
        f"{len(processes)} of {many} processes on {host} had threads that were ready to run and "
        f"had no core, for up to {worst} of the time."
    )


def longer_by(slowdown: Slowdown) -> float:
    """The share of a longer iteration by which it is longer."""
    return 1 - slowdown.before_ns / slowdown.after_ns


def slowed_by_cpu(facts: Facts, slowdown: Slowdown, text: str) -> Finding | None:
    """The host or process that explains a lasting slowdown: it lacks cores since then.

    text: what became slower.
    """
    share_of = recorded(facts)
    first_ns = _first_ns(facts)
    since_ns = first_ns if slowdown.baseline else slowdown.from_ns
    shares = _shares(facts, share_of, since_ns, slowdown.to_ns)
    before = {at: share_of(at, first_ns, since_ns) or 0.0 for at in shares}
    lost = longer_by(slowdown)
    grown = {
        at: one
        for at, one in shares.items()
        if one >= GROWN * before[at] and explains(one, before[at], lost)
    }
    if not grown:
        return None
    host = facts.processes[max(grown, key=lambda at: grown[at])].host
    mine = [at for at in grown if facts.processes[at].host == host]
    return Finding(
        "non_communication_slow",
        _place(facts, mine),
        since_ns,
        slowdown.to_ns,
        0.8,
        True,
        f"{_told(facts, mine, [grown[at] for at in mine])} Before, it was up to "
        f"{percent(max(before[at] for at in mine), 0)}. {_without_place(text)}",
        QUERY,
        ADVICE,
        more={SHARE: round(max(grown.values()), 3)},
    )


def _without_place(text: str) -> str:
    """What became slower, as a sentence, without that nothing explains it: this finding does."""
    text = text.removesuffix(NO_PLACE).rstrip()
    return f"{text[:1].upper()}{text[1:]}"


def varies_by_cpu(facts: Facts, slowdown: Slowdown) -> bool:
    """Whether an iteration is longer by no more than threads of the job waited for cores anyway."""
    shares = _shares(facts, recorded(facts), slowdown.from_ns, slowdown.to_ns)
    return max(shares.values(), default=0.0) >= longer_by(slowdown)


def unsteady_by_cpu(facts: Facts, lost: float) -> bool:
    """Whether threads of the job waited for cores for as much of its time as it lost."""
    shares = _shares(facts, recorded(facts), _first_ns(facts), facts.end_ns)
    return max(shares.values(), default=0.0) >= lost


def note_of(facts: Facts) -> str:
    """A note about the hosts with processes short of CPU over the whole trace; empty: none."""
    share_of = recorded(facts)
    shares = _shares(facts, share_of, _first_ns(facts), facts.end_ns)
    hosts = sorted({facts.processes[at].host for at in shares})
    said = []
    for host in hosts[:NAMED_MAX]:
        mine = [at for at in shares if facts.processes[at].host == host]
        worst = percent(max(shares[at] for at in mine), 0)
        said.append(f"{facts.named(np.array(mine))} on host {host} for up to {worst} of the time")
    if not said:
        return ""
    more = f" and on {len(hosts) - NAMED_MAX} more hosts" if len(hosts) > NAMED_MAX else ""
    return (
        f"short of CPU: threads were ready to run and had no core: {'; '.join(said)}{more}; "
        "this delays messages as a slow NIC does"
    )
