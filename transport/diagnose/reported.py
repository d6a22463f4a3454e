"""Findings that programs reported themselves, in logs that were imported: errors of the network,
and operations that ran into PyTorch's timeout."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.ground.units import time_text
from transport.trace.store import Store

# Completion statuses of libibverbs (ibv_poll_cq(3)) that NCCL's lines name.
STATUSES = {
    4: "local protection error",
    5: "flushed after another error",
    10: "remote access error",
    12: "retries exhausted: the peer did not acknowledge",
    13: "the peer was not ready to receive for too long",
}
FIRST_CAUSES = (12, 13, 10, 4)  # flushes come after them
QUERY = (
    "SELECT process, what, peer, status, value, time_ns FROM events "
    "WHERE what IN ('transport_error', 'collective_timeout')"
)
FRAMES = "SELECT process, peer FROM events WHERE what = 'python_frame' ORDER BY process, value"
INSIDE = "site-packages/torch/"  # frames of PyTorch, which say less than those of the program
SHOWN = 3  # frames of a stack in a text


def reported(store: Store, facts: Facts, numbers: dict[int, int]) -> list[Finding]:
    """A finding for each rank that reported an error of its network, else for timeouts."""
    errors: dict[int, list[tuple[str, int]]] = defaultdict(list)
    timeouts: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for process, what, peer, status, value, _ in store.rows(QUERY):
        at = numbers.get(process, -1)
        if what == "transport_error":
            errors[at].append((str(peer), int(status or 0)))
        else:
            timeouts[at].append((str(peer), int(value or 0)))
    made = [_of_errors(facts, at, found, timeouts.get(at, [])) for at, found in errors.items()]
    if not made and timeouts:
        behind = _behind(facts, timeouts)
        made = [_of_timeouts(facts, at, found) for at, found in timeouts.items()]
        made = [behind] if behind is not None else made
    return made


def _behind(facts: Facts, timeouts: dict[int, list[tuple[str, int]]]) -> Finding | None:
    """The ranks with fewer calls than the others in a communicator, and more in none, if operations
    ran into the timeout at other ranks. Only a suspicion: a log may lack its last lines."""
    calls = facts.calls
    counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for comm, process, kind in zip(
        *(calls[name].tolist() for name in ("comm_id", "process", "kind")), strict=True
    ):
        if kind == "collective":
            counts[comm][process] += 1
    less: dict[int, tuple[int, int]] = {}
    more: set[int] = set()
    for of in counts.values():
        most = max(of.values())
        if min(of.values()) < most:
            less |= {one: (count, most) for one, count in of.items() if count < most}
            more |= {one for one, count in of.items() if count == most}
    found = sorted(one for one in less if one not in more and one not in timeouts)
    if not found:
        return None
    own, most = less[found[0]]
    name = facts.named(np.array(found))
    late = facts.named(np.array([at for at in timeouts if at >= 0]))
    return Finding(
        "non_communication_hang",
        Place("rank", name, tuple(facts.processes[one].rank for one in found)),
        facts.end_ns,
        facts.end_ns,
        0.6,
        False,
        f"{late} ran into PyTorch's timeout. In the log, {name} called {own} operations of a "
        f"communicator, and others {most}.",
        QUERY,
        f"See what {name} does: py-spy dump on its host shows its stack. Dumps of the Flight "
        "Recorder tell it with certainty (TORCH_NCCL_DUMP_ON_TIMEOUT=1).",
    )


def stacks_of(store: Store, numbers: dict[int, int]) -> dict[int, list[str]]:
    """Process -> the Python stack of its last call, the innermost frame first."""
    made: dict[int, list[str]] = defaultdict(list)
    for process, frame in store.rows(FRAMES):
        made[numbers.get(process, -1)].append(str(frame))
    return made


def with_stack(facts: Facts, one: Finding, stacks: dict[int, list[str]]) -> Finding:
    """The finding; if it is about one rank whose stack is known, with that of its last call."""
    if one.place.kind != "rank" or len(one.place.ranks) != 1:
        return one
    ranks = {process.rank: at for at, process in enumerate(facts.processes)}
    frames = stacks.get(ranks.get(one.place.ranks[0], -1), [])
    if not frames:
        return one
    text = f" Its last call came from {own_frames(frames)}."
    return replace(one, evidence=one.evidence + text, more={**one.more, "stacks": frames})


def own_frames(frames: list[str]) -> str:
    """The innermost frames of a stack that are of the program, as text."""
    own = [frame for frame in frames if not frame.startswith("<") and INSIDE not in frame]
    return "; ".join((own or frames)[:SHOWN])


def _timeouts_text(timeouts: list[tuple[str, int]]) -> str:
    return "".join(
        f" {what} ran into PyTorch's timeout after {time_text(ms * 1e6)}." for what, ms in timeouts
    )


def _of_errors(
    facts: Facts, at: int, found: list[tuple[str, int]], timeouts: list[tuple[str, int]]
) -> Finding:
    def order(one: tuple[str, int]) -> int:
        return FIRST_CAUSES.index(one[1]) if one[1] in FIRST_CAUSES else len(FIRST_CAUSES)

    peer, status = min(found, key=order)
    name = facts.name(at) if at >= 0 else "a rank that the log does not name"
    ranks = (facts.processes[at].rank,) if at >= 0 else ()
    said = STATUSES.get(status, "see ibv_poll_cq(3)")
    return Finding(
        "communication_hang",
        Place("pair", f"{name} to {peer}", ranks),
        facts.end_ns,
        facts.end_ns,
        0.9,
        True,
        f"NCCL of {name} reported a failed transfer to {peer}: status {status} ({said})."
        + _timeouts_text(timeouts),
        QUERY,
        f"Check the link, the NIC and the process at {peer}; then those of {name} (ibstat, error "
        "counters of the port).",
        more={"status": status},
    )


def _of_timeouts(facts: Facts, at: int, found: list[tuple[str, int]]) -> Finding:
    name = facts.name(at) if at >= 0 else "a rank that the log does not name"
    ranks = (facts.processes[at].rank,) if at >= 0 else ()
    return Finding(
        "communication_hang",
        Place("rank", name, ranks),
        facts.end_ns,
        facts.end_ns,
        0.5,
        False,
        f"{name} reports:{_timeouts_text(found)} The log does not tell which rank it waited for.",
        QUERY,
        "Import the dumps of all ranks: TORCH_NCCL_TRACE_BUFFER_SIZE=2000, "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1, then weft trace import flight.",
    )
