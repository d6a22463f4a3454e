"""Adds the hosts' evidence on processes and devices to findings, and derives findings from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transport.diagnose import hardware
from transport.diagnose.cpu_wait import with_short_of_cpu
from transport.diagnose.finding import SUSPECTED_MAX, Finding, Place, graded
from transport.diagnose.hang import LAST_QUERY
from transport.diagnose.hardware import Trouble
from transport.diagnose.live.merge import SURE, Job

Seen = dict[str, Any]

STUCK_NS = 5_000_000_000  # an engine that has not run for this long is worth a suspicion
# An application that posts nothing is suspected if a peer has waited for this long.
IDLE_NS = 5_000_000_000
NAMED_MAX = 4
HANGS = ("communication_hang", "non_communication_hang")
STATUS_QUERY = "SELECT process, peer, status, end_ns FROM connections ORDER BY end_ns"


def refined(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with the evidence of hosts; a stopped or dead process comes first."""
    own = _of_states(job)
    explained = {one.place.ranks for one in own if one.certain}
    made = list(own)
    names = {one.place.name for one in own if one.certain}
    for one in findings:
        known = one.kind in ("crash", "non_communication_hang") and (
            one.place.name in names or (one.place.ranks in explained and -1 not in one.place.ranks)
        )
        # A stopped or dead process makes its peers wait, so a hang that the rules found is its
        # effect.
        follows = names and one.kind in HANGS
        if not known and not follows:
            waits = one.kind in HANGS and _is_undecided(job)
            made.append(_with_evidence(job, graded(one, False) if waits else one))
    made = _of_gpus(job, _overloaded(job, made))
    if not any(one.certain for one in made):
        hung = {one.place.name for one in made if one.kind == "non_communication_hang"}
        made += [one for one in _suspicions(job) if one.place.name not in hung]
    return sorted(made, key=lambda one: (not one.certain, -one.confidence, one.from_ns))


def _of_states(job: Job) -> list[Finding]:
    """Findings of processes that are stopped, or that are gone without an end of their trace."""
    made = []
    alive = [
        at
        for at, one in enumerate(job.facts.processes)
        if one.ended is not True and not _has(job, at, "gone", "zombie")
    ]
    for at, process in enumerate(job.facts.processes):
        for seen in job.evidence.get(at, ()):
            kind, sure = seen.get("kind"), int(seen.get("readings", 1)) >= SURE
            if kind == "stopped":
                made.append(_stopped(job, at, seen, sure))
            elif kind in ("gone", "zombie") and process.ended is not True and sure:
                # One reading that shows a process gone is not enough: it may have ended normally,
                # and the end of its trace may not have been read yet.
                made.append(_gone(job, at, seen, bool(alive)))
    return made


def _is_undecided(job: Job) -> bool:
    """Whether a process seems to be stopped or gone, but too few readings have shown it yet."""
    return any(
        seen.get("kind") in ("stopped", "gone", "zombie") and int(seen.get("readings", 1)) < SURE
        for at, process in enumerate(job.facts.processes)
        if process.ended is not True
        for seen in job.evidence.get(at, ())
    )


def _place(job: Job, at: int) -> Place:
    return Place("rank", job.facts.name(at), (job.facts.processes[at].rank,))


def _stopped(job: Job, at: int, seen: Seen, sure: bool) -> Finding:
    name = job.facts.name(at)
    return Finding(
        "non_communication_hang",
        _place(job, at),
        int(seen["since_ns"]),
        max(job.facts.end_ns, int(seen["since_ns"])),
        0.99 if sure else SUSPECTED_MAX,
        sure,
        f"{name} does not run: {seen['text']}." + _more(job, at, ("stopped",)) + _waiting(job, at),
        LAST_QUERY,
        f"Find who stopped it (a debugger, a scheduler, a shell), and continue it: kill -CONT "
        f"{job.facts.processes[at].pid} on {job.facts.processes[at].host}.",
        more={"state": "stopped"},
    )


def _gone(job: Job, at: int, seen: Seen, sure: bool) -> Finding:
    name, dead = job.facts.name(at), [peers for one, _, peers in job.dead if one == at]
    told = f" {dead[0]} {'peer' if dead[0] == 1 else 'peers'} found it dead." if dead else ""
    sure = sure or bool(dead)
    return Finding(
        "crash",
        _place(job, at),
        job.facts.processes[at].last_ns,
        job.facts.end_ns,
        0.99 if sure else SUSPECTED_MAX,
        sure,
        f"The process of {name} on {job.facts.processes[at].host} died: {seen['text']}, and its "
        f"trace has no end.{told}" + _more(job, at, ("gone", "zombie")),
        STATUS_QUERY,
        "Look for the reason on its host (dmesg: out of memory; a signal; a failed GPU), and "
        "restart the job without that host if it repeats.",
        more={"state": seen["kind"]},
    )


def _has(job: Job, at: int, *kinds: str) -> bool:
    return any(one.get("kind") in kinds for one in job.evidence.get(at, ()))


def _more(job: Job, at: int, without: tuple[str, ...]) -> str:
    """Other evidence on a process and its host's devices. without: kinds that are left out."""
    texts = [one["text"] for one in job.evidence.get(at, ()) if one.get("kind") not in without]
    host = job.processes[at].get("host")
    texts += [f"{one['text']} (on {one['host']})" for one in job.devices if one["host"] == host]
    return "".join(f" {text[0].upper()}{text[1:]}." for text in texts[:NAMED_MAX] if text)


def _waiting(job: Job, at: int) -> str:
    """Text about the number of other processes whose telemetry pages say that they wait."""
    others = [one for one in job.evidence if one != at and _has(job, one, "waits")]
    many = len(others)
    return f" {many} other process{'es wait' if many > 1 else ' waits'}." if many else ""


def _with_evidence(job: Job, one: Finding) -> Finding:
    """The finding, completed with the evidence of its ranks' hosts."""
    known = {process.rank: at for at, process in enumerate(job.facts.processes)}
    mine = [known[rank] for rank in one.place.ranks if rank in known and rank >= 0]
    mine += [at for at in range(len(job.facts.processes)) if job.facts.name(at) == one.place.name]
    text = "".join(_more(job, at, ()) for at in dict.fromkeys(mine[:NAMED_MAX]))
    stacks = {
        job.facts.name(at): seen["stack"]
        for at in mine[:NAMED_MAX]
        for seen in job.evidence.get(at, ())
        if seen.get("stack")
    }
    more = {**one.more, "stacks": stacks} if stacks else one.more
    return replace(one, evidence=one.evidence + text, more=more)


def _overloaded(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """The findings; slow places of processes without a core become one of the host or process."""
    shares = {
        at: max(float(seen["share"]) for seen in job.evidence[at] if "share" in seen)
        for at in sorted(job.evidence)
        if _has(job, at, "starved")
    }

    def share_of(process: int, from_ns: int, to_ns: int) -> float | None:
        return shares.get(process)

    return with_short_of_cpu(job.facts, share_of, findings, past=False)


def _of_gpus(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with the faults of GPUs that hosts observed, and what these explain."""
    troubles = [_trouble(one, str(one["host"]), ()) for one in job.devices if one.get("code")]
    of_rank: dict[int, list[Trouble]] = {}
    for at, process in enumerate(job.facts.processes):
        mine = [one for one in job.evidence.get(at, ()) if one.get("code")]
        ranks = (process.rank,) if process.rank >= 0 else ()
        own = [_trouble(one, process.host, ranks) for one in mine]
        of_rank.setdefault(process.rank, []).extend(own)
        troubles += own
    # NVML and the kernel log report the same XID.
    troubles = list({(one.code, one.host, one.pci): one for one in troubles}.values())
    where = hardware.Job(job.facts.processes, job.facts.end_ns)
    faults, _ = hardware.hardware_faults(where, troubles)
    return hardware.merged(hardware.slowed(findings, of_rank), faults)


def _trouble(one: Seen, host: str, ranks: tuple[int, ...]) -> Trouble:
    texts = {name: str(one.get(name, "")) for name in ("code", "pci")}
    return Trouble(
        **texts,
        host=host,
        pid=int(one.get("pid", 0)),
        time_ns=int(one.get("time_ns", -1)),
        ranks=ranks,
    )


def _suspicions(job: Job) -> list[Finding]:
    """Engines that do not run, and applications that post nothing while their peers wait."""
    made = []
    for at in job.evidence:
        for seen in job.evidence[at]:
            ns = int(seen.get("ns", 0))
            name, process = job.facts.name(at), job.facts.processes[at]
            dump = f"--pid {process.pid} on {process.host}"
            if seen.get("kind") == "engine" and ns >= STUCK_NS:
                text = f"{name}: {seen['text']}: its thread hangs, or gets no CPU."
                advice = f"See what takes its cores (top -H), and py-spy dump --native {dump}."
            elif seen.get("kind") == "idle" and ns >= IDLE_NS:
                text = f"{name} has posted nothing: {seen['text']}."
                advice = f"See what {name} does: py-spy dump {dump} shows its stack."
            else:
                continue
            made.append(
                Finding(
                    "non_communication_hang",
                    _place(job, at),
                    job.facts.end_ns - ns,
                    job.facts.end_ns,
                    0.5,
                    False,
                    text,
                    STATUS_QUERY,
                    advice,
                )
            )
    return made[:NAMED_MAX]
