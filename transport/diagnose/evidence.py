"""The four answers of a diagnosis, and what a trace lacks for the answer "healthy"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.measures import windows_of_edges
from transport.diagnose.windows import WINDOW_MIN_NS, Windows, moments
from transport.ground.units import time_text
from transport.trace.notes import ranges

Array = NDArray[Any]

ITERATIONS_MIN = 5  # whole iterations; with fewer no change can be told from noise
# A rank or a NIC is judged if it was seen in this share of the iterations.
SEEN_MIN = 0.6


class Answer(Enum):
    """What a diagnosis says of a job as a whole."""

    HEALTHY = "healthy"
    FOUND = "found"
    UNEXPLAINED = "slower but unexplained"
    NOT_JUDGED = "not judged"

    @property
    def status(self) -> int:
        """The exit status of `weft diagnose`; 2 is wrong usage."""
        return {"healthy": 0, "found": 1, "slower but unexplained": 3, "not judged": 4}[self.value]


@dataclass(frozen=True)
class Lack:
    """Something that is missing for a judgment. remedy: what to record next time."""

    what: str
    remedy: str

    @property
    def text(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class Evidence:
    """How much was judged. ranks, nics: how many were seen in enough iterations. iterations: whole
    ones. lacks: what is missing for the answer "healthy"."""

    ranks: int = 0
    nics: int = 0
    iterations: int = 0
    messages: int = 0
    lacks: tuple[Lack, ...] = ()

    @property
    def text(self) -> str:
        nics = f"{self.nics} NICs by {self.messages} messages" if self.nics else "no NIC by itself"
        return f"judged: {self.ranks} ranks in {self.iterations} iterations, {nics}"


def evidence_of(
    facts: Facts, windows: Windows, judged: Windows, missing: Sequence[int] = (), paused_ns: int = 0
) -> Evidence:
    """What a trace tells about a job.

    windows: its iterations. judged: the windows in which slowness is judged. missing: ranks of the
    job without a trace. paused_ns: how long the job has made no progress at the end of the trace.
    """
    whole = max(windows.count - 1, 0)
    ranks, lacks = _ranks(facts, windows)
    lacks = [*_of_traces(facts, missing), *lacks]
    if whole < ITERATIONS_MIN:
        lacks.append(
            Lack(
                f"the trace has {whole} whole iteration{'s' * (whole != 1)}",
                f"record {ITERATIONS_MIN} or more",
            )
        )
    elif not facts.simulated and judged.count < 3:
        lacks.append(
            Lack(
                f"the trace has {judged.count} windows of {time_text(WINDOW_MIN_NS)} or more, and "
                "slowness must be seen in several",
                f"record for more than {time_text(3 * WINDOW_MIN_NS)}: schedulers delay ranks for "
                "tens of ms now and then",
            )
        )
    if paused_ns:
        pause = f"the job made no progress in the last {time_text(paused_ns)}"
        lacks.append(Lack(pause, "a longer trace tells a pause from a hang"))
    nics = _nics(facts, windows)
    return Evidence(ranks, nics, whole, int(facts.edges["messages"].sum()), tuple(lacks))


def text_of(numbers: Sequence[int]) -> str:
    """Numbers of ranks in increasing order as text: "rank 3", "ranks 0-3, 7"."""
    return f"rank{'s' * (len(numbers) != 1)} {ranges(numbers)}"


def _of_traces(facts: Facts, missing: Sequence[int]) -> list[Lack]:
    lacks = []
    if missing:
        text = f"no trace of {text_of(missing)}"
        lacks.append(Lack(text, "collect the traces of all hosts"))
    damaged = sorted(one.rank for one in facts.processes if not one.whole)
    if damaged:
        lacks.append(
            Lack(
                f"the trace of {text_of(damaged)} is damaged or lacks records",
                "weft trace info says why; write traces to a disk that is faster or has more room",
            )
        )
    return lacks


def _ranks(facts: Facts, windows: Windows) -> tuple[int, list[Lack]]:
    """How many processes were seen in enough iterations, and what lacks."""
    calls = facts.calls
    if not len(calls["process"]):
        return 0, [Lack("the trace has no operation and no message", "set WEFT_TRACE for the job")]
    known = calls["arrival_ns"] >= 0
    if not known.any():
        return 0, [
            Lack(
                "no call has a kernel or a message, so it is not known when a rank came",
                "record GPU activity (torch.profiler), or run the job with WEFT_TRACE",
            )
        ]
    seen = np.zeros((max(windows.count, 1), len(facts.processes)), bool)
    timed = known | (calls["begin_ns"] >= 0)
    seen[windows.of(moments(calls))[timed], calls["process"][timed]] = True
    inner = seen[: max(windows.count - 1, 1)]
    enough = inner.mean(axis=0) >= SEEN_MIN
    lacks = []
    rare = [facts.processes[one].rank for one in np.flatnonzero(~enough).tolist()]
    if rare:
        lacks.append(
            Lack(
                f"{text_of(sorted(rare))} called operations in few of the iterations",
                "record the same iterations on all ranks",
            )
        )
    return int(enough.sum()), lacks


def _nics(facts: Facts, windows: Windows) -> int:
    """How many processes sent or received messages in enough iterations."""
    edges = facts.edges
    if not len(edges["source"]) or not windows.count:
        return 0
    window = windows_of_edges(facts, windows)
    seen = np.zeros((windows.count, len(facts.processes)), bool)
    for end in ("source", "target"):
        seen[window, edges[end]] = True
    return int((seen[: max(windows.count - 1, 1)].mean(axis=0) >= SEEN_MIN).sum())
