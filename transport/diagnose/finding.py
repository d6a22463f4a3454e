"""A finding: the class of a fault, its place, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

SUSPECTED_MAX = 0.6  # largest confidence of a suspicion

# What a non_communication_hang means whose `more` has the state WENT_ON.
WENT_ON, PAUSE = "went on", "a process did not run for a while, and went on: a pause, and no hang"

LOST = "lost_share"  # in Finding.more: the part of an iteration that slow messages take longer
# In Finding.more: the share of the time for which threads had no core, and what that means.
SHARE = "cpu_wait_share"
SHORT = "processes wait for CPU cores, which makes them and their messages late"

# Class -> what it means. docs/DIAGNOSIS.md has the faults that get each class.
CLASSES = {
    "healthy": "nothing is wrong",
    "crash": "a process died",
    "mismatch": "ranks called different operations, sizes or orders",
    "initialization_hang": "the job does not get past its start: ranks wait for others to come",
    "communication_hang": "all ranks called an operation, and it does not end",
    "non_communication_hang": "a rank does not call an operation that the others wait in",
    "network_loss": "the network loses some packets of some paths, or all of them",
    "communication_slow": "messages to or from one place take longer than others",
    "congestion": "queues are long on links that several flows share",
    "hardware_fault": "a GPU is broken, as its driver reports, or its clocks are held down",
    "non_communication_slow": "a rank comes late to operations again and again (a straggler)",
}


@dataclass(frozen=True)
class Place:
    """A place. `kind`: rank, nic, gpu, link, pair, network or host; `name`: as reports show it.

    ranks: the ranks that it concerns. side: send, receive, or empty for both or neither.
    candidates: names of other places that explain the evidence equally well. inventory: where its
    ranks are, by an inventory, each as a dictionary; shown: the name with that, empty: no
    inventory.
    """

    kind: str
    name: str
    ranks: tuple[int, ...] = ()
    side: str = ""
    candidates: tuple[str, ...] = ()
    inventory: tuple[dict[str, Any], ...] = ()
    shown: str = ""


@dataclass(frozen=True)
class Finding:
    """One fault.

    from_ns, to_ns: since when and until when it was seen, on the clock of the trace's first host.
    confidence_of_all: 0 to 1, that it is the place or one of its candidates. certain: direct
    evidence, or seen in enough windows; otherwise a suspicion.
    lost_ns: time that the job lost by it, if that is known. weight: size of the fault, to compare
    findings of one class. indirect: what shows it may follow from another fault, as delays of
    messages do. evidence: one paragraph with the numbers. query: SQL for `weft trace
    query` that shows them.
    """

    kind: str
    place: Place
    from_ns: int
    to_ns: int
    confidence_of_all: float
    certain: bool
    evidence: str
    query: str
    advice: str
    lost_ns: int | None = None
    weight: float = 0.0
    indirect: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def meaning(self) -> str:
        """What the finding means, in a few words."""
        if self.more.get("state") == WENT_ON:
            return PAUSE
        return SHORT if SHARE in self.more else CLASSES[self.kind]

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the place and of its candidates."""
        return (self.place.name, *self.place.candidates)

    @property
    def confidence(self) -> float:
        """0 to 1, that it is this place: its candidates, which explain as much, share it."""
        return round(self.confidence_of_all / len(self.places), 3)


def graded(one: Finding, certain: bool) -> Finding:
    """The finding as a certain one, or as a suspicion, with a confidence up to SUSPECTED_MAX."""
    limit = 1.0 if certain else SUSPECTED_MAX
    return replace(one, certain=certain, confidence_of_all=min(one.confidence_of_all, limit))
