"""The waits of flows, connections and processes, from the states in a telemetry page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transport.ground.units import bytes_text, time_text
from transport.live.rows import age_ns, number, paths_down
from transport.live.silence import LONG_NS, Evidence
from transport.telemetry import Page, PeerRow, Row

# Time without progress below which a flow counts as transferring. States are written every 10 ms.
MOVING_NS = 200_000_000
# Time after which an engine that neither ran nor sleeps counts as stuck.
ENGINE_NS = 1_000_000_000

# Reason -> its meaning. If flows of a connection have several reasons, the first one here is shown.
REASONS = {
    "gone": "the process has ended",
    "stopped": "the process is stopped by a signal or a debugger",
    "engine": "an engine thread has not run: it hangs or has no CPU",
    "dead": "the peer was given up: its process is gone, or it has not answered in time",
    "failed": "the connection has failed",
    "paths": "the peer answers on no path: its process is stopped or gone, or the network is cut",
    "acknowledgment": "the peer has not acknowledged what was sent",
    "room": "the peer has posted no receive, or granted no credit",
    "transferring": "bytes are moving",
    "receive": "the peer has not sent what is to be received",
    "closing": "the close is being sent, or is done",
    "idle": "nothing is outstanding",
}
ORDER = {reason: index for index, reason in enumerate(REASONS)}
PHASES = ("open", "failed", "closing", "closed")


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait: its reason, a key of REASONS; its time so far in ns; and a text about it.

    The text begins with what is waited for, because its end may be cut on a terminal.
    """

    reason: str
    ns: int
    text: str


def of_process_state(page: Page) -> Wait | None:
    """The wait of a process that cannot run, else None."""
    if page.process_state == "gone":
        return Wait("gone", 0, "gone: the process has ended")
    if page.process_state == "stopped":
        return Wait("stopped", 0, "stopped by a signal")
    return None


def of_engine(page: Page, engine: Row) -> Wait | None:
    """The wait of an engine that does not run, else None."""
    still_ns = age_ns(page, engine, "turn_ns")
    if still_ns is None or still_ns < ENGINE_NS or engine.state.get("sleeping"):
        return None
    text = f"engine {engine.index} has not run for {time_text(still_ns, 2)} (starved or stuck)"
    return Wait("engine", still_ns, text)


def of_flow(
    page: Page,
    flow: Row,
    peer: PeerRow | None,
    engine: Row | None,
    evidence: Evidence | None = None,
) -> Wait:
    """The wait of one flow. evidence: about silent peers; None: that of this page alone."""
    evidence = evidence or Evidence([page])
    held = of_process_state(page) or (of_engine(page, engine) if engine is not None else None)
    if held is not None:
        return held
    name = str(peer.state.get("address") or "the peer") if peer is not None else "the peer"
    phase = number(flow, "phase")
    if phase in (2, 3):
        return Wait("closing", 0, PHASES[phase])
    if peer is not None and peer.state.get("dead"):
        silent_ns = age_ns(page, peer, "heard_ns")
        silent = "" if silent_ns is None else f", not heard for {time_text(silent_ns, 2)}"
        why = evidence.cause(page, peer, silent_ns or 0)
        return Wait("dead", silent_ns or 0, f"dead: {name}{silent}: {why}")
    if phase == 1:
        return Wait("failed", 0, "failed")
    still_ns = _still_ns(page, flow)
    if flow.state.get("sends"):
        return _of_sends(page, flow, peer, name, evidence)
    if flow.state.get("receives"):
        if still_ns < MOVING_NS:
            return Wait("transferring", 0, "transferring")
        silent = _silence(page, peer, still_ns, evidence)
        text = f"receive: {name} sent nothing for {time_text(still_ns, 2)}{silent}"
        return Wait("receive", still_ns, text)
    return Wait("idle", 0, "idle")


def _of_sends(page: Page, flow: Row, peer: PeerRow | None, name: str, evidence: Evidence) -> Wait:
    still_ns = _still_ns(page, flow)
    if still_ns < MOVING_NS:
        return Wait("transferring", 0, "transferring")
    age = time_text(still_ns, 2)
    if peer is not None and peer.paths and paths_down(peer) == len(peer.paths):
        ways = "its path" if len(peer.paths) == 1 else f"all {len(peer.paths)} paths"
        why = evidence.cause(page, peer, still_ns)
        return Wait("paths", still_ns, f"no answer from {name} for {age} on {ways}: {why}")
    inflight, unsent = flow.counters.get("inflight_bytes", 0), number(flow, "unsent_bytes")
    silent = _silence(page, peer, still_ns, evidence)
    if inflight > 0:
        text = f"acknowledgment of {bytes_text(inflight, 3)} by {name}, {age}{silent}"
        return Wait("acknowledgment", still_ns, text)
    if unsent > 0:
        left = bytes_text(unsent, 3)
        text = f"room: {name} posts no receive or grants no credit, {left} unsent, {age}{silent}"
        return Wait("room", still_ns, text)
    sends = number(flow, "sends")
    what = "a message" if sends == 1 else f"{sends} messages"
    return Wait("acknowledgment", still_ns, f"acknowledgment of {what} by {name}, {age}{silent}")


def worst(waits: Iterable[Wait]) -> Wait:
    """The wait to show for several: the first by the order of REASONS, of these the longest."""
    return min(waits, key=lambda one: (ORDER[one.reason], -one.ns), default=Wait("idle", 0, "idle"))


def of_process(page: Page, engines: Iterable[Wait | None], connections: Iterable[Wait]) -> Wait:
    """The wait of a process; says how many connections wait if not all of them do."""
    held = of_process_state(page)
    stuck = [wait for wait in engines if wait is not None]
    if held is not None or stuck:
        return held or worst(stuck)
    waits = list(connections)
    if not waits:
        return Wait("idle", 0, "idle: no connections" if not page.flows else "idle")
    # A long wait for a receive says more about a process than that other connections transfer.
    long = [one for one in waits if one.reason == "receive" and one.ns >= LONG_NS]
    first = worst(waits)
    if first.reason == "transferring" and long:
        first = max(long, key=lambda one: one.ns)
    same = sum(one.reason == first.reason for one in waits)
    if same == len(waits) or first.reason == "idle":
        return first
    return Wait(first.reason, first.ns, f"{first.text} ({same} of {len(waits)} connections)")


def _still_ns(page: Page, flow: Row) -> int:
    """Time since a flow's last progress; before the first one, since its last post or packet."""
    since_ns = number(flow, "progress_ns") or number(flow, "active_ns") or page.created_ns
    return max(0, page.read_ns - since_ns)


def _silence(page: Page, peer: PeerRow | None, still_ns: int, evidence: Evidence) -> str:
    """Text about how long a peer was silent, and what may be the reason; "" if not for LONG_NS."""
    if peer is None:
        return ""
    silent_ns = age_ns(page, peer, "heard_ns")
    if (still_ns if silent_ns is None else silent_ns) < LONG_NS:
        return ""
    how_long = "never heard" if silent_ns is None else f"not heard for {time_text(silent_ns, 2)}"
    return f", {how_long}{evidence.stopped(page, peer)}"
