"""Checks the declared signals of a policy against the fields that its code reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from congestion.api import DELIVERY_FIELDS, HOP_FIELDS, NACK, TIMEOUT, Policy
from transport.compiler.library import Library
from transport.compiler.lint import reads
from transport.conformance.path_bench import GAP_NS, RTT_NS, Conduct, PathBench
from transport.conformance.result import Outcome, usual
from transport.conformance.streams import Stream
from transport.conformance.wraps import first_difference, play

Fields = tuple[str, ...]

# Signal -> fields of which a policy that declares it reads one, and those of which one that does
# not declare it reads none. Smoothed and least round trips serve as clocks, too.
_WINDOW: dict[str, tuple[Fields, Fields]] = {
    "rtt": (("rtt_ns", "srtt_ns", "rtt_min_ns"), ("rtt_ns",)),
    "host_delay": (("ack_delay_ns",), ("ack_delay_ns",)),
    "ecn": (("ecn_segments",), ("ecn_segments",)),
    "rate": (("delivered_bytes", "acked_bytes", *DELIVERY_FIELDS), DELIVERY_FIELDS),
    "int": (HOP_FIELDS, HOP_FIELDS),
    "chance": (("rand",), ("rand",)),
}
_PATH: dict[str, tuple[Fields, Fields]] = {
    "rate": (("bytes", "paths.inflight_bytes"), ()),
    "chance": (("rand", "rand2"), ("rand", "rand2")),
}
_ORDER = ("newest_acked_sent_ns", "highest_acked_seq", "cumulative_seq", "sacked_segments")
_LOSS: dict[str, tuple[Fields, Fields]] = {
    "rtt": (("rtt_ns", "srtt_ns", "rttvar_ns", "rtt_min_ns"), ("rtt_ns", "rttvar_ns")),
    "loss": ((*_ORDER, "spurious_segments"), ("highest_acked_seq", "sacked_segments")),
    "timeout": (("rto_ns", "oldest_inflight_sent_ns"), ()),
    "chance": (("rand",), ("rand",)),
}
_CREDIT: dict[str, tuple[Fields, Fields]] = {
    "credit": (("demand_bytes", "granted_bytes", "received_bytes"), ()),
    "ecn": (("ecn_segments",), ("ecn_segments",)),
    "chance": (("rand",), ("rand",)),
}
_FIELDS = {"window": _WINDOW, "path": _PATH, "loss": _LOSS, "credit": _CREDIT}
ON_LOSS, ON_TIMEOUT = 2, 3  # hooks of a window policy
PATHS, PICKS, FLOWS = (4, 8), 400, 4
SEEDS = 4  # random chunks in which an event's effect is looked for


def matters(policy: Policy, library: Library, hook: int) -> bool:
    """Whether the answers to the other hooks change if a hook is never called."""
    for seed in range(SEEDS):
        chunk = Stream(policy, seed).chunk(extreme=False)
        keep = np.array(chunk.hooks) != hook
        hooks = [one for one in chunk.hooks if one != hook]
        other = replace(chunk, hooks=hooks, events=chunk.events[keep], presets=chunk.presets[keep])
        here = play(policy, library, chunk, 0).results[keep]
        there = play(policy, library, other, 0).results
        if first_difference(here, there, {})[0] >= 0:
            return True
    return False


def picks(policy: Policy, library: Library, signal: str, told: bool) -> list[int]:
    """The paths that some flows get while half of them give a signal, or do not (`told`)."""
    chosen: list[int] = []
    for paths in PATHS:
        bench = PathBench(policy, library, paths, Conduct(retires=False, rto_ns=RTT_NS + GAP_NS))
        odd = set(range(1, paths, 2))
        for turn in range(PICKS):
            if turn == PICKS // 4:
                bench.marking = odd if signal == "ecn" and told else set()
                bench.nacking = odd if signal == "loss" else set()
                bench.dead = odd if signal == "timeout" else set()
                bench.mute = -1 if told else {"loss": NACK, "timeout": TIMEOUT}.get(signal, -1)
                if signal == "rtt" and told:
                    bench.told_rtt_ns = dict.fromkeys(odd, 10 * RTT_NS)
            bench.pick(flow=1 + turn % FLOWS)
        chosen += bench.picks
    return chosen


def decided_by(policy: Policy, library: Library) -> dict[str, bool]:
    """Signals that are hooks, or feedback of a path, and whether they change an answer."""
    if policy.family.name == "window":
        hooks = {"loss": ON_LOSS, "timeout": ON_TIMEOUT}
        return {name: matters(policy, library, hook) for name, hook in hooks.items()}
    if policy.family.name == "path":
        return {
            name: picks(policy, library, name, True) != picks(policy, library, name, False)
            for name in ("rtt", "ecn", "loss", "timeout")
        }
    return {}


def as_declared(policy: Policy, library: Library) -> Outcome:
    """Compares the declared signals with the fields read, and with the events that matter."""
    seen = {
        field if role == "event" else f"{role}.{field}"
        for role, field in reads(policy)
        if role in ("event", "paths", "params")
    }
    decided = decided_by(policy, library)
    declared = set(policy.promises.signals)
    fields = _FIELDS[policy.family.name]
    wrong: list[str] = []
    found: list[str] = []
    for signal, (any_of, none_of) in fields.items():
        used = sorted(seen & set(none_of))
        if signal in declared and not seen & set(any_of):
            wrong.append(f"{signal} is declared, and none of {', '.join(any_of)} is read")
        elif signal not in declared and used:
            wrong.append(f"{', '.join(used)} is read, and {signal} is not declared")
        if used or (signal in declared and seen & set(any_of)):
            found.append(signal)
    for signal, effect in decided.items():
        if signal in declared and not effect:
            wrong.append(f"{signal} is declared, and changes no answer")
        elif effect and signal not in declared:
            wrong.append(f"{signal} changes answers, and is not declared")
        if effect:
            found.append(signal)
    if "weights" in declared and not any(name.startswith("params.") for name in seen):
        wrong.append("weights is declared, and no parameter is read")
    known = {*fields, *decided, "weights"}
    wrong += [f"{name} is no signal of this family" for name in sorted(declared - known)]
    silent = not declared
    return usual(
        "signals as declared",
        silent or not wrong,
        f"decides by {', '.join(found) or 'none'}" + (": nothing declared" if silent else "")
        if silent or not wrong
        else "; ".join(wrong),
        "reads what it declares, and no other signal",
        "declare in Promises(signals=...) what the hooks use, or use what is declared",
        where=policy.module.rpartition("/")[2],
    )
