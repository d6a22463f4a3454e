"""Finds the processes that do not answer NCCL's RAS: they died, do not run, or are out of reach.

RAS calls a process unresponsive after about 5 s without an answer, and considers it dead after
about 60 s (NCCL's user guide, "RAS"). A stopped process looks the same, so a crash needs another
sign: an error that NCCL of a peer reports.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from transport.diagnose.finding import SUSPECTED_MAX, Finding, Place
from transport.diagnose.ras_finding import IN_PROGRESS, REMOTE, STILL_NS, SURE_NS, made
from transport.diagnose.ras_statuses import NAMED_MAX, Statuses, identity, title, where
from transport.ground.units import time_text
from transport.trace.nccl_ras import RasComm, RasMissing, RasRank, is_known

CRASH, STOPPED, START, LEFT = "crash", "stopped", "start", "left"
KINDS = {
    CRASH: "crash",
    STOPPED: "non_communication_hang",
    START: "initialization_hang",
    LEFT: "non_communication_hang",
}


@dataclass(frozen=True)
class _Gone:
    """A process that is missing. spots: its place in each communicator.

    accusers: ranks whose NCCL reports a remote process error, with their communicators.
    """

    spots: tuple[tuple[RasComm, RasMissing], ...]
    accusers: tuple[tuple[RasComm, RasRank], ...]
    lasted_ns: int

    @property
    def dead(self) -> bool:
        return any(one.dead for _, one in self.spots)

    @property
    def what(self) -> str:
        starting = any(
            one.init_state == IN_PROGRESS for comm, _ in self.spots for one in comm.ranks
        )
        if all(one.answers for _, one in self.spots):
            return START if starting else LEFT
        if self.accusers:
            return CRASH
        return START if starting else STOPPED

    @property
    def certain(self) -> bool:
        if self.what == LEFT:
            return False
        if self.what == START and not self.dead:
            return self.lasted_ns >= SURE_NS
        return self.dead or self.lasted_ns >= STILL_NS


def missing_processes(statuses: Statuses) -> tuple[list[Finding], list[Finding]]:
    """A finding for the processes of each kind that others wait for; and the suspicion that some
    ended a communicator which others still have."""
    spots: dict[Hashable, list[tuple[RasComm, RasMissing]]] = {}
    for comm in statuses.comms:
        for one in comm.missing:
            spots.setdefault(identity(comm, one), []).append((comm, one))
    kinds: dict[tuple[str, bool], list[_Gone]] = {}
    for mine in spots.values():
        gone = _gone(statuses, mine)
        kinds.setdefault((gone.what, gone.certain), []).append(gone)
    every = [(what, certain) for what in KINDS for certain in (True, False)]
    found = {one: _finding(statuses, *one, kinds[one]) for one in every if one in kinds}
    left = found.pop((LEFT, False), None)
    return [*found.values()], [] if left is None else [left]


def _gone(statuses: Statuses, spots: Sequence[tuple[RasComm, RasMissing]]) -> _Gone:
    accusers = [(comm, one) for comm, _ in spots for one in comm.ranks if one.error == REMOTE]
    lasted_ns = min(statuses.missing_ns(comm, one) for comm, one in spots)
    return _Gone(tuple(spots), tuple(accusers), lasted_ns)


def _finding(statuses: Statuses, what: str, certain: bool, gone: Sequence[_Gone]) -> Finding:
    largest = [max(one.spots, key=lambda spot: spot[0].size) for one in gone]
    ranks = tuple(sorted(statuses.rank_of(comm, one) for comm, one in largest))
    known = ranks if ranks[0] >= 0 else ()
    name = _named(statuses, largest)
    lasted_ns = min(one.lasted_ns for one in gone)
    processes = [one.process for _, one in largest if is_known(one.process)]
    hosts = list(dict.fromkeys(process[0] for process in processes))
    text = _text(statuses, what, gone, name, processes)
    if lasted_ns:
        text += f" It is so for {time_text(lasted_ns, 2)}, in which the ranks of its communicators "
        text += "launched nothing."
    elif not certain and len(statuses.each) > 1:
        text += " That is new since the last status, or other ranks launched operations meanwhile."
    elif not certain:
        text += " One status does not tell whether this lasts: ask RAS again."
    found = made(
        statuses,
        KINDS[what],
        Place("rank" if len(gone) == 1 else "ranks", name, known),
        lasted_ns,
        certain,
        text,
        _advice(what, name, hosts, processes),
    )
    if certain and all(one.dead for one in gone):  # RAS itself has waited for a minute
        return replace(found, confidence_of_all=max(found.confidence_of_all, 0.9))
    # Silence and an error are two signs.
    least = SUSPECTED_MAX if what == CRASH else 0.0
    return replace(found, confidence_of_all=max(found.confidence_of_all, least))


def _named(statuses: Statuses, spots: Sequence[tuple[RasComm, RasMissing]]) -> str:
    comm = spots[0][0]
    if all(one is comm for one, _ in spots):
        return statuses.named(comm, [one for _, one in spots])
    names = [statuses.named(one, [spot]) for one, spot in spots]
    more = f" and {len(names) - NAMED_MAX} more" if names[NAMED_MAX:] else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _text(
    statuses: Statuses,
    what: str,
    gone: Sequence[_Gone],
    name: str,
    processes: Sequence[tuple[str, int, int]],
) -> str:
    shown = ", ".join(where(one) for one in processes[:NAMED_MAX])
    more = f" and {len(processes) - NAMED_MAX} more" if processes[NAMED_MAX:] else ""
    who = f"{name} ({shown}{more})" if shown and not name.startswith("process") else name
    if what == LEFT:
        return (
            f"{who} answers RAS, and does not have {title(gone[0].spots[0][0])} any more: it "
            "destroyed or aborted the communicator, and others still have it."
        )
    if what == START and all(one.answers for each in gone for _, one in each.spots):
        return f"{who} answers RAS, and others wait for it to make {title(gone[0].spots[0][0])}."
    text = f"RAS gets no answer from {who}"
    dead = sum(one.dead for one in gone)
    text += f", and considers {'it' if len(gone) == 1 else f'{dead} of them'} dead" if dead else ""
    if what == CRASH:
        accusers = {one.process: (comm, one) for each in gone for comm, one in each.accusers}
        said = ", ".join(statuses.named(comm, [one]) for comm, one in [*accusers.values()][:4])
        return f"{text}, and NCCL of {said} reports a remote process error ({REMOTE})."
    if what == START:
        return f"{text}, and others wait to make a communicator with it."
    return (
        f"{text}. No other rank reports an error of NCCL, so its connections may still be open: "
        "its process is stopped or ended, or its host is out of reach."
    )


def _advice(
    what: str, name: str, hosts: Sequence[str], processes: Sequence[tuple[str, int, int]]
) -> str:
    on = f" on {', '.join(hosts[:NAMED_MAX])}" if hosts else ""
    if what == CRASH:
        return (
            f"See the log of {name}, and the kernel's log{on} (journalctl -k): out of memory, "
            "XIDs. If the host is down or out of reach, it looks the same."
        )
    if what == LEFT:
        return f"See in the log of {name} why it ended the communicator."
    pids = ",".join(str(one[1]) for one in processes[:NAMED_MAX])
    look = f"ps -o pid,stat,wchan -p {pids}{on}" if pids else "ps on its host"
    return (
        f"See whether it runs: {look} (T: stopped, D: waits for a device, none: it ended), and "
        "whether the host can be reached."
    )
