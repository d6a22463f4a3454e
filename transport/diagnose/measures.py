"""Computes, for each window, how late each rank came and how long messages took between ranks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.alone import (
    DEVIATIONS,
    FEW_PEERS,
    LASTING,
    RECENT,
    grown,
)
from transport.diagnose.distinct import distinct, rows_by
from transport.diagnose.facts import Facts, ordinals
from transport.diagnose.windows import Windows, begun_ns, medians, moments

Array = NDArray[Any]

# A pair is slow if its messages take more than 1.5 times the pair's usual time (as logarithms).
SLOW = float(np.log(1.5))
# A pair is also slow if its messages take more than 2.5 times as long as those of other pairs.
SLOW_ALONE = float(np.log(2.5))
FEW_PAIRS = 8
HISTORY_MIN, HISTORY_MAX = 2, 50  # least and most past time windows whose median is the usual time
STAGES_MAX = 64  # a longer chain of sends is no pipeline


@dataclass(frozen=True, eq=False)
class Lateness:
    """The ns that each rank took longer than the others between operations.

    own: [window, process], summed over the operations of the window to which the rank came clearly
    late; time before several operations that begin at once, such as gradient buckets, counts once.
    gpu: the part of `own` that passed between the rank's calls and their first messages.
    """

    own: Array
    gpu: Array


def own_ns(calls: dict[str, Array]) -> Array:
    """For each call, the time that the rank spent on its own before it; -1: not known.

    It is the time since the rank's latest other operation ended or, if that still ran, began. A
    call that sends nothing gets -1. The end of a Send counts only before another Send.
    """
    begun, process = calls["arrival_ns"], calls["process"]
    is_send = calls["function"] == "Send"
    made = np.full(len(begun), -1, np.int64)
    for _, mine in rows_by(process):
        done = mine[calls["end_ns"][mine] >= 0]
        # What a rank receives may arrive before the rank calls the operation, which then seems to
        # end before it begins: such an end counts as just after the begin.
        ends = np.maximum(calls["end_ns"][done], begun[done] + 1)
        starts = np.sort(begun[mine][begun[mine] >= 0])
        for sends in (False, True):
            sending = mine[(begun[mine] >= 0) & (is_send[mine] == sends)]
            waited = np.sort(ends if sends else ends[~is_send[done]])
            when = begun[sending]
            latest = np.maximum(_latest(waited, when, "right"), _latest(starts, when, "left"))
            made[sending] = np.where(latest >= 0, when - latest, -1)
    return made


def received_ns(calls: dict[str, Array]) -> Array:
    """For each Recv that has ended, how long its data waited for the GPU of its rank; else -1.

    Only the time since another operation of the rank ended counts: before, it ran on the GPU.
    """
    process, end_ns = calls["process"], calls["end_ns"]
    receives = (calls["function"] == "Recv") & (calls["arrival_ns"] < 0) & (end_ns >= 0)
    made = np.full(len(process), -1, np.int64)
    for _, every in rows_by(process):
        mine = every[end_ns[every] >= 0]
        mine = mine[np.argsort(end_ns[mine], kind="stable")]
        made[mine] = np.diff(end_ns[mine], prepend=end_ns[mine[:1]])
    waited: Array = np.where(receives, np.minimum(calls["gpu_wait_ns"], made), -1)
    return waited


def _latest(times: Array, when: Array, side: Literal["left", "right"]) -> Array:
    """For each moment, the latest of the sorted times before it; -1: none."""
    at = np.searchsorted(times, when, side=side)
    return np.concatenate([[-1], times])[at]


def lateness_of(facts: Facts, windows: Windows) -> Lateness:
    calls = facts.calls
    process, arrival = calls["process"], calls["arrival_ns"]
    kinds = _directed(facts)
    relaying = relaying_of(facts, kinds)
    role = roles_of(process, kinds, stages_of(facts))
    group = _numbered(kinds, ordinals(process, kinds), role)
    own = own_ns(calls)
    came = input_ns(facts)
    own[relaying] = np.minimum(own, arrival - came)[relaying]
    known = (own >= 0) & ~relaying
    excess, gpu = np.zeros(len(own)), np.zeros(len(own))
    excess[known] = beyond_doubt(group[known], own[known])
    # A rank whose input came early also spends time on its own, but it is late only if others
    # were earlier: the other ranks of the operation or, for a send, the ranks with the same role.
    after_peers = arrival - medians(calls["instance"], begun_ns(calls))
    sends = known & (calls["kind"] != "collective")
    after_peers[sends] = (arrival[sends] - medians(group[sends], arrival[sends])).astype(np.int64)
    excess = np.maximum(np.minimum(excess, after_peers), 0)
    waited = (arrival - calls["begin_ns"])[known]
    waited = waited - medians(group[known], waited)
    gpu[known] = np.clip(waited, 0, np.maximum(excess[known], 0))
    window = windows.of(moments(calls))
    shape = (max(windows.count, 1), len(facts.processes))
    in_gpu = np.zeros(shape)
    np.add.at(in_gpu, (window, process), gpu)
    own = np.where((calls["kind"] == "collective") & ~relaying, np.clip(after_peers, 0, own), own)
    received = received_ns(calls)
    begun = np.where(received >= 0, received, arrival - calls["begin_ns"])
    own = np.where(received >= 0, received, own)
    mine = (own >= 0) & (relaying | alone_of(process, role))
    more = grown(window[mine], process[mine], kinds[mine], own[mine], shape)
    began = grown(window[mine], process[mine], kinds[mine], begun[mine], shape)
    until_ns = np.where(received >= 0, calls["end_ns"], arrival)

    def passed(lasted_ns: Array) -> Array:
        """[window, process]: the sum of its calls' lasted_ns; overlapping time counts once."""
        made = np.zeros(shape)
        np.add.at(made, (window, process), apart(process, until_ns, lasted_ns))
        return made

    totals, before = passed(excess), np.where(mine, own, 0)
    # Time that is in both `totals` and `more` counts once: a rank may be late to a send and a tree.
    both = totals + passed(before) - passed(np.maximum(excess, before))
    late = totals + more - np.minimum(both, np.minimum(totals, more))
    if windows.count:
        late = np.minimum(late, np.diff(windows.starts_ns, append=windows.end_ns)[:, None])
    return Lateness(late, np.minimum(in_gpu + np.minimum(began, more), late))


def _numbered(*keys: Array) -> Array:
    """The number of each row's combination of keys."""
    return distinct(*keys)[1]


def apart(process: Array, end_ns: Array, lasted_ns: Array) -> Array:
    """For each interval of length lasted_ns until end_ns, the part that no earlier interval of the
    same process covers: so their sum counts overlapping time once."""
    made = np.zeros(len(process), np.int64)
    some = np.flatnonzero(lasted_ns >= 1)
    if not some.size:
        return made
    lasted = lasted_ns[some].astype(np.int64)
    # Each process gets a span of its own, so that a running maximum never leaves it.
    first_ns = int((end_ns[some] - lasted).min())
    span = int(end_ns[some].max()) - first_ns + 1
    end = process[some].astype(np.int64) * span + (end_ns[some] - first_ns)
    begin = end - lasted
    order = np.lexsort((end, begin))
    begin, end = begin[order], end[order]
    covered = np.maximum.accumulate(np.concatenate([begin[:1], end[:-1]]))
    made[some[order]] = np.maximum(end - np.maximum(begin, covered), 0)
    return made


def input_ns(facts: Facts) -> Array:
    """For each call, when the last data that it may have waited for began to arrive; 0: none."""
    calls, edges = facts.calls, facts.edges
    ranks = len(facts.processes)
    ends = edges["instance"] * ranks + edges["target"]
    first_ns = edges["first_ns"].astype(np.int64)
    mine = calls["instance"] * ranks + calls["process"]
    sent = np.full(facts.instances * ranks, -1, np.int64)
    sent[mine] = calls["arrival_ns"]
    before = first_ns <= sent[ends]
    came = np.zeros(facts.instances * ranks, np.int64)
    np.maximum.at(came, ends[before], first_ns[before])
    found: Array = came[mine]
    return found


def _directed(facts: Facts) -> Array:
    """Numbers the kinds of calls; sends to later ranks, as in a pipeline, are another kind than
    sends to earlier ones."""
    calls = facts.calls
    alone = (calls["kind"] == "p2p") & (calls["root"] >= 0)
    sign = np.where(alone, np.sign(calls["root"].astype(np.int64) - calls["rank"]), 0)
    return facts.kinds * 3 + sign + 1


def relaying_of(facts: Facts, kinds: Array) -> Array:
    """For each call, whether it sends only what its rank received, as inner ranks of a tree do.

    Other ranks decide when such a call first sends, so it is compared with other calls of its own
    rank. A rank relays if in every operation of a kind and communicator it received first.
    """
    calls, edges = facts.calls, facts.edges
    ranks = len(facts.processes)
    ends = edges["instance"] * ranks + edges["target"]
    first = np.full(facts.instances * ranks, np.iinfo(np.int64).max)
    np.minimum.at(first, ends, edges["first_ns"].astype(np.int64))
    sends = calls["relays"].astype(bool) & (calls["arrival_ns"] >= 0)
    mine = calls["instance"] * ranks + calls["process"]
    _, comm = np.unique(calls["comm_id"], return_inverse=True)
    group = distinct(kinds, comm.ravel(), calls["process"])[1]
    own_turn = np.zeros(int(group.max(initial=0)) + 1, bool)
    own_turn[group[sends & (first[mine] >= calls["arrival_ns"])]] = True
    relaying: Array = sends & ~own_turn[group]
    return relaying


def beyond_doubt(groups: Array, values: Array) -> Array:
    """By how much values exceed the median of their group; 0 if they deviate no more than usual."""
    above = values - medians(groups, values)
    usual = 1.4826 * medians(groups, np.abs(above))
    return np.where(above > DEVIATIONS * usual, above, 0.0)


def stages_of(facts: Facts) -> Array:
    """[process]: its stage, counted along the sends to later ranks; all 0 if there is no pipeline.

    In a pipeline, ranks of different stages call the same operations at different times.
    """
    calls, edges = facts.calls, facts.edges
    none = np.zeros(len(facts.processes), np.int64)
    alone = np.zeros(facts.instances, bool)
    alone[calls["instance"]] = calls["kind"] != "collective"
    forward = alone[edges["instance"]] & (edges["source"] < edges["target"])
    pairs = distinct(edges["source"][forward], edges["target"][forward])[0]
    stage = none.copy()
    for _ in range(STAGES_MAX if pairs.size else 0):
        before = stage.copy()
        np.maximum.at(stage, pairs[1], stage[pairs[0]] + 1)
        if (stage == before).all():
            return stage
    return none


def roles_of(process: Array, kinds: Array, stage: Array) -> Array:
    """Numbers the roles of processes: those that call the same kinds of operations have one.

    Stages divide a role if each of them has enough ranks to be compared with each other.
    """
    if not len(process):
        return process
    known: dict[tuple[int, ...], int] = {}
    role = np.zeros(int(process.max(initial=0)) + 1, np.int64)
    owner, kind = distinct(process, kinds)[0]
    ones, first = np.unique(owner, return_index=True)
    for one, mine in zip(ones.tolist(), np.split(kind, first[1:]), strict=True):
        role[one] = known.setdefault(tuple(mine.tolist()), len(known))
    divided = distinct(role[ones], stage[ones])[1]
    if (np.bincount(divided) >= FEW_PEERS).all():
        role[ones] = divided
    return role[process]


def alone_of(process: Array, role: Array) -> Array:
    """For each call, whether the role of its process has fewer than FEW_PEERS processes."""
    few: Array = np.bincount(distinct(role, process)[0][0], minlength=1)[role] < FEW_PEERS
    return few


@dataclass(frozen=True, eq=False)
class Delays:
    """The delays of messages, by window and pair of ranks.

    pairs: [pair, 2] sender and receiver. excess: [window, pair] logarithm of a message's time
    divided by its usual time; 0 if none was sent. slow: [window, pair] whether the excess is clear.
    lost_ns: [window, pair] by how much the pair's operations exceed their usual time, in sum.
    sent: [window, pair] whether a message was sent.
    """

    pairs: Array
    excess: Array
    slow: Array
    lost_ns: Array
    sent: Array

    def of_pairs(self, chosen: Array) -> Delays:
        """The delays of some of the pairs."""
        parts = (self.excess, self.slow, self.lost_ns, self.sent)
        return Delays(self.pairs[chosen], *(part[:, chosen] for part in parts))


def delays_of(facts: Facts, windows: Windows) -> Delays:
    """The delays of messages, compared with the usual time of their pair and operation kind.

    The usual time is the pair's in earlier windows, relative to other pairs; without enough
    windows, that of the other pairs in this window.
    """
    edges, calls = facts.edges, facts.calls
    ends, pair = distinct(edges["source"], edges["target"])
    pairs = ends.T
    kind_of = np.zeros(facts.instances, np.int64)
    kind_of[calls["instance"]] = facts.kinds
    kind = kind_of[edges["instance"]]
    window = windows_of_edges(facts, windows)
    shape = (max(windows.count, 1), len(pairs))
    excess, slow, weight = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape)
    lost_ns, lasted_ns = np.zeros(shape), edges["end_ns"] - edges["first_ns"]
    latency = np.log(np.maximum(edges["latency_ns"].astype(np.float64), 1))
    for one in np.unique(kind).tolist():
        mine = kind == one
        table = _table(shape, window[mine], pair[mine], latency[mine])
        found, bad = _excess_of_kind(table)
        seen = ~np.isnan(table)
        count = np.zeros(shape)
        np.add.at(count, (window[mine], pair[mine]), edges["messages"][mine])
        excess[seen] += (found * count)[seen]
        took_ns = np.zeros(shape)
        np.add.at(took_ns, (window[mine], pair[mine]), lasted_ns[mine])
        lost_ns[seen] += (took_ns * (1 - np.exp(-np.maximum(found, 0))))[seen]
        weight += count
        slow |= bad
    return Delays(pairs, excess / np.maximum(weight, 1), slow, lost_ns, weight > 0)


def windows_of_edges(facts: Facts, windows: Windows) -> Array:
    """The window of each row of the edges: that of its operation."""
    moment = np.zeros(facts.instances, np.int64)
    moment[facts.calls["instance"]] = moments(facts.calls)
    return windows.of(moment[facts.edges["instance"]])


def rates_of(facts: Facts, windows: Windows, source: Array, target: Array) -> Array:
    """[window]: bytes a nanosecond that the given pairs carried together while one of them was
    busy; NaN: they carried nothing."""
    edges = facts.edges
    wanted = source.astype(np.int64) << 32 | target.astype(np.int64)
    mine = np.isin(edges["source"].astype(np.int64) << 32 | edges["target"], wanted)
    window = windows_of_edges(facts, windows)[mine]
    end_ns = edges["end_ns"][mine].astype(np.int64)
    busy_ns, carried = np.zeros(windows.count), np.zeros(windows.count)
    np.add.at(busy_ns, window, apart(window, end_ns, end_ns - edges["first_ns"][mine]))
    np.add.at(carried, window, edges["bytes"][mine].astype(np.float64))
    return np.where(busy_ns > 0, carried / np.maximum(busy_ns, 1), np.nan)


def _table(shape: tuple[int, int], window: Array, pair: Array, latency: Array) -> Array:
    """The mean of `latency` for each window and pair; NaN where there is no message."""
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (window, pair), latency)
    np.add.at(count, (window, pair), 1)
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _excess_of_kind(table: Array) -> tuple[Array, Array]:
    """The excess of each window and pair over the usual time, and whether it is clear."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # windows and pairs without messages
        against = table - _common(table)
        spread = 1.4826 * np.nanmedian(np.abs(against), axis=1, keepdims=True)
    excess, slow = np.zeros(table.shape), np.zeros(table.shape, bool)
    # A pair's history without the windows of a fault, as a lasting fault must not become usual.
    history = against.copy()
    usual, known = np.zeros(table.shape[1]), np.zeros(table.shape[1], bool)
    for at in range(len(table)):
        alone = against[at] > np.maximum(SLOW_ALONE, DEVIATIONS * spread[at])
        before = history[max(at - RECENT - HISTORY_MAX, 0) : max(at - RECENT + 1, 0)]
        enough = (~np.isnan(before)).sum(axis=0) >= HISTORY_MIN
        if enough.any():
            usual[enough] = np.nanmedian(before[:, enough], axis=0)
        known |= enough
        change = against[at] - usual
        doubt = np.maximum(SLOW, DEVIATIONS * _noise(before, usual, enough))
        slow[at] = np.where(known, (change > doubt) | alone, alone)
        excess[at] = np.where(known & ~alone, change, against[at])
        recent = slice(max(at + 1 - LASTING, 0), at + 1)
        lasting = slow[recent].sum(axis=0) >= LASTING - 1
        history[recent] = np.where(slow[recent] & lasting, np.nan, history[recent])
    return np.maximum(np.nan_to_num(excess), 0), slow


def _common(table: Array) -> Array:
    """[window, 1]: the typical time of all pairs in each window, which is their median.

    If there are fewer than FEW_PAIRS pairs, it is the lower quartile, because one slow NIC slows
    half of the pairs of, for example, a ring of four ranks, which would raise the median.
    """
    if table.shape[1] >= FEW_PAIRS:
        return np.asarray(np.nanmedian(table, axis=1, keepdims=True))
    return np.asarray(np.nanquantile(table, 0.25, axis=1, keepdims=True, method="lower"))


def _noise(before: Array, usual: Array, known: Array) -> float:
    """The usual deviation of a pair from its own median."""
    if not known.any():
        return 0.0
    return 1.4826 * float(np.nanmedian(np.abs(before[:, known] - usual[known])))
