"""Finds faults of GPUs by what the kernel's log and NVML reported of them: XIDs, ECC, NVLink, heat.

A GPU is only blamed for an error that NVIDIA's documentation puts down to the hardware, that came
while the job ran, on a host that the job used. Errors that programs cause are named in notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.facts import SIMULATED_NS_MAX, Process
from transport.diagnose.finding import Finding, Place, graded
from transport.diagnose.hang import LAST_QUERY
from transport.host.kernel_log import UNKNOWN_NS, XidError
from transport.host.xids import HARDWARE, LINK, REPLACE, SOON, WEARS, Xid, xid_of
from transport.trace.inventory import Inventory, pci_of
from transport.trace.notes import ranges

SLOWS = "slows"  # blames a GPU only if its rank is slow
# What NVML reports besides XIDs: by the word that evidence has as its `code`.
CODES = {
    "ecc": Xid("new ECC errors that cannot be corrected", HARDWARE, REPLACE),
    "remap failed": Xid("a row of its memory could not be remapped", HARDWARE, REPLACE),
    "remap pending": Xid("rows of its memory wait for a reset to be remapped", WEARS, SOON),
    "nvlink": Xid("its NVLinks had errors", WEARS, LINK),
    "heat": Xid("heat slows down its clocks", SLOWS, "Check fans, air and coolant of the host"),
    "power": Xid(
        "the power supply slows down its clocks", SLOWS, "Check power supplies and their cables"
    ),
    "slowdown": Xid("the hardware slows down its clocks", SLOWS, "Check power and cooling"),
}
AROUND_NS = 600_000_000_000  # errors so long before a job's first record or after its last count
CERTAIN, SUSPECTED = 0.97, 0.5
NAMED_MAX = 4  # kinds of errors that the evidence of one GPU lists
EFFECTS = ("crash", "communication_hang", "non_communication_hang", "initialization_hang")
SLOW = ("non_communication_slow",)


@dataclass(frozen=True)
class Trouble:
    """Something that was reported of a GPU. code: a key of CODES, or "xid 79".

    host, pci: "" if not told. pid: 0 if not told. time_ns: UNKNOWN_NS if not told. text: of the
    report. ranks: those that use the GPU, if whoever reports it knows.
    """

    code: str
    host: str = ""
    pci: str = ""
    pid: int = 0
    time_ns: int = UNKNOWN_NS
    text: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def xid(self) -> Xid:
        number = self.code.removeprefix("xid ")
        if number != self.code:
            return xid_of(int(number) if number.isascii() and number.isdigit() else 0)
        return CODES.get(self.code, xid_of(0))

    @property
    def what(self) -> str:
        return f"{self.code.upper()} ({self.xid.meaning})" if self.is_xid else self.xid.meaning

    @property
    def is_xid(self) -> bool:
        return self.code.startswith("xid ")


def of_log(errors: Iterable[XidError], host: str = "") -> list[Trouble]:
    """The troubles that a kernel log tells. host: of lines that name none."""
    return [
        Trouble(
            f"xid {one.number}", one.host or host, pci_of(one.pci), one.pid, one.time_ns, one.text
        )
        for one in errors
    ]


@dataclass(frozen=True)
class Job:
    """Where and when a job ran. inventory: tells the GPUs of ranks; None: not known."""

    processes: Sequence[Process]
    end_ns: int
    inventory: Inventory | None = None

    @property
    def hosts(self) -> list[str]:
        return sorted({one.host for one in self.processes if one.host})

    def knows_time(self, trouble: Trouble) -> bool:
        return trouble.time_ns != UNKNOWN_NS and self.end_ns > SIMULATED_NS_MAX

    def ran_at(self, trouble: Trouble) -> bool:
        """Whether the job may have run when the trouble was reported."""
        first_ns = min((one.first_ns for one in self.processes if one.first_ns > 0), default=0)
        inside = first_ns - AROUND_NS <= trouble.time_ns <= self.end_ns + AROUND_NS
        return inside or not self.knows_time(trouble)

    def host_of(self, trouble: Trouble) -> str | None:
        """The host that a trouble is of; "": not told; None: the job did not use it."""
        if not self.hosts:  # its dumps name none
            return trouble.host
        if not trouble.host:
            return self.hosts[0] if len(self.hosts) == 1 else ""
        short = trouble.host.partition(".")[0]
        alike = [one for one in self.hosts if one == trouble.host or one.partition(".")[0] == short]
        return alike[0] if alike else None

    def ranks_of(self, trouble: Trouble, host: str) -> tuple[tuple[int, ...], bool]:
        """The ranks that use the GPU, and True; not known: all ranks of its host, and False."""
        if trouble.ranks:
            return trouble.ranks, True
        ranked = [one for one in self.processes if one.rank >= 0]
        here = [one for one in ranked if not host or not self.hosts or one.host == host]
        by_pid = {one.rank for one in here if trouble.pid and one.pid == trouble.pid}
        if len(by_pid) == 1:  # also of a process of several sources
            return tuple(by_pid), True
        if self.inventory is not None and trouble.pci and host in self.hosts:
            beside = [one.rank for one in here]
            spots = [self.inventory.spot(rank, host, beside) for rank in beside]
            of_gpu = tuple(sorted(one.rank for one in spots if one.gpu == trouble.pci))
            if of_gpu:
                return of_gpu, True
        return tuple(sorted({one.rank for one in here if one.host})) if host else (), False


def hardware_faults(job: Job, troubles: Iterable[Trouble]) -> tuple[list[Finding], list[str]]:
    """A finding for each GPU that is at fault, and notes on reports that blame no GPU."""
    of_gpu: dict[tuple[str, str, tuple[int, ...], bool], list[Trouble]] = {}
    elsewhere = before = 0
    for one in troubles:
        host = job.host_of(one)
        if host is None:
            elsewhere += 1
        elif not job.ran_at(one):
            before += 1
        else:
            of_gpu.setdefault((host, one.pci, *job.ranks_of(one, host)), []).append(one)
    notes = []
    if elsewhere:
        notes.append(f"{elsewhere} errors of GPUs are of hosts that the job did not use")
    if before:
        notes.append(f"{before} errors of GPUs came when the job did not run: they do not count")
    made = []
    for (host, pci, ranks, known), mine in of_gpu.items():
        faults = [one for one in mine if one.xid.blames in (HARDWARE, WEARS)]
        if faults:
            made.append(_finding(job, (host, pci, ranks, known), mine, faults))
        others = [one for one in mine if one not in faults and one.xid.blames != SLOWS]
        if others and not faults:
            said = ", ".join(dict.fromkeys(one.what for one in others[:NAMED_MAX]))
            notes.append(f"{_gpu(host, pci)} reported {said}, which does not blame the GPU")
    return sorted(made, key=lambda one: (not one.certain, one.from_ns)), notes


def _gpu(host: str, pci: str) -> str:
    return f"GPU {pci or '?'} of {host or 'a host that the log does not name'}"


def _finding(
    job: Job,
    where: tuple[str, str, tuple[int, ...], bool],
    every: Sequence[Trouble],
    faults: Sequence[Trouble],
) -> Finding:
    host, pci, ranks, known = where
    worst = min(faults, key=lambda one: (one.xid.blames != HARDWARE, one.time_ns))
    timed = [one.time_ns for one in faults if job.knows_time(one)]
    certain = worst.xid.blames == HARDWARE and job.knows_time(worst) and host in job.hosts
    counts: dict[str, int] = {}
    for one in every:
        counts[one.what] = counts.get(one.what, 0) + 1
    parts = [what + (f", {count} times" if count > 1 else "") for what, count in counts.items()]
    more = f"; and {len(parts) - NAMED_MAX} other kinds" if parts[NAMED_MAX:] else ""
    text = f"{_gpu(host, pci)} reported {'; '.join(parts[:NAMED_MAX])}{more}."
    text += f" First: {_time(timed[0])}." if timed else " When is not known."
    if worst.text:
        text += f' The log says: "{worst.text}".'
    named = f"rank{'s' * (len(ranks) != 1)} {ranges(sorted(ranks))}"
    if ranks:
        text += (
            f" It is the GPU of {named}."
            if known
            else f" Whether it is used by {named} is not known."
        )
    return Finding(
        "hardware_fault",
        Place("gpu", _gpu(host, pci), ranks),
        min(timed, default=job.end_ns),
        max(timed, default=job.end_ns),
        CERTAIN if certain else SUSPECTED,
        certain,
        text,
        LAST_QUERY,
        f"{worst.xid.action}.",
        more={
            "codes": list(dict.fromkeys(one.code for one in every)),
            "pci": pci,
            "host": host,
            "whose": known,
        },
    )


def _time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def with_hardware(
    found: Diagnosis, faults: Sequence[Finding], notes: Sequence[str] = ()
) -> Diagnosis:
    """The diagnosis with faults of GPUs. What a certain one explains becomes part of it."""
    findings = tuple(merged(found.findings, faults))
    return replace(found, findings=findings, notes=(*found.notes, *notes))


def merged(findings: Sequence[Finding], faults: Sequence[Finding]) -> list[Finding]:
    """Findings and faults of GPUs: the hang, crash or slowness of the same rank is an effect.

    If it is not known who uses a GPU, its fault is only certain with such an effect.
    """
    left = list(findings)
    made = []
    for fault in faults:
        mine = [one for one in left if fault.certain and _is_effect(one, fault)]
        left = [one for one in left if one not in mine]
        text = "".join(
            f" It explains {one.kind} of {one.place.name}: {one.evidence}" for one in mine
        )
        kept = [{"class": one.kind, "place": one.place.name, **one.more} for one in mine]
        more = {**fault.more, "explains": kept} if kept else fault.more
        sure = fault.certain and bool(mine or fault.more.get("whose"))
        made.append(graded(replace(fault, evidence=fault.evidence + text, more=more), sure))
    certain = [one for one in made if one.certain]
    suspected = [one for one in made if not one.certain]
    return [*certain, *left, *suspected]


def _is_effect(one: Finding, fault: Finding) -> bool:
    """Whether a finding is of a rank of the GPU that is at fault."""
    ranks = set(one.place.ranks)
    return one.kind in (*EFFECTS, *SLOW) and bool(ranks) and ranks <= set(fault.place.ranks)


def slowed(findings: Sequence[Finding], troubles: Mapping[int, Sequence[Trouble]]) -> list[Finding]:
    """The findings; a slow rank whose GPU is held down by heat or power is a fault of hardware.

    troubles: by rank, of GPUs that are known to be that of the rank.
    """
    made = []
    for one in findings:
        causes = [
            trouble
            for rank in one.place.ranks
            for trouble in troubles.get(rank, ())
            if trouble.xid.blames == SLOWS
        ]
        if one.kind in SLOW and causes and len(one.place.ranks) == 1:
            text = f" Its GPU: {'; '.join(dict.fromkeys(each.what for each in causes))}."
            one = replace(
                one,
                kind="hardware_fault",
                evidence=one.evidence + text,
                advice=f"{causes[0].xid.action}.",
                more={**one.more, "codes": list(dict.fromkeys(each.code for each in causes))},
            )
        made.append(one)
    return made
