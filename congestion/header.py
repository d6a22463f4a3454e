"""Decides the text of native/policy/records.h: the C++ view of the records in congestion.api.

Never touches a file: the caller writes the text.
"""

from __future__ import annotations

from congestion.api import (
    CREDIT_EVENT,
    CREDIT_RESULT,
    LOSS_EVENT,
    LOSS_RESULT,
    PATH_EVENT,
    PATH_HEAD,
    PATH_RESULT,
    WINDOW_EVENT,
    WINDOW_RESULT,
    Record,
)

_TOP = """\
// The records that policies read and write, as congestion/api.py declares them.
// Never edited: `python -m transport.compiler --header native/policy/records.h` writes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::policy {
"""

_MEANING = {
    "now_ns": "the caller's clock",
    "ack_delay_ns": "how long the receiver had the segment, less what its thread was away",
    "delivered_bytes": "cumulative",
    "window_bytes": "in force",
    "app_limited": "1: the sender had less to send than the window allowed",
    "rand": "in [0, 1)",
    "rand2": "in [0, 1), independent of rand",
    "hint_window_bytes": "at start: 0, or the window of the policy that this one replaces",
    "pacing_bytes_per_s": "0: unpaced",
    "bytes": "that the feedback is about",
    "ready_bytes": "waiting to be sent",
    "avoid_path": "-1, or the path on which the segment was lost",
    "flow": "whose burst or report it is: a hash, >= 0; -1: of no flow (a probe came back)",
    "usable": "0: dead or retired",
    "rto_ns": "with backoff",
    "newest_acked_sent_ns": "of the newest segment of this flow delivered on this path, -1: none",
    "oldest_inflight_sent_ns": "on this path, -1: none",
    "newest_inflight_sent_ns": "on this path, -1: none",
    "inflight_segments": "on this path",
    "spurious_segments": "of the flow: judged lost though delivered, said by this acknowledgment",
    "lost_below_seq": "-1: none",
    "lost_sent_before_ns": "-1: none; what this flow sent on this path strictly before is lost",
    "next_check_ns": "absolute; < 0: rto_ns after the oldest in flight",
    "demand_bytes": "cumulative: what the sender asked for",
    "received_bytes": "cumulative",
    "link_bytes_per_s": "0: unknown",
    "sacked_segments": "of this flow, delivered above cumulative_seq",
    "probed_sent_ns": "when the newest probe that came back on this path had left, -1: none",
    "probe": "1: probe this path now; its return calls on_ack with probed_sent_ns",
    "granted_bytes": "cumulative, never falls",
    "next_tick_ns": "absolute; < 0: none",
}

_KINDS = {
    "WindowEvent": "-1 start, 0 ack, 1 loss, 2 timeout",
    "PathEvent": "-1 start, 0 pick, 1 good, 2 ecn, 3 nack, 4 timeout",
    "LossEvent": "-1 start, 0 ack, 1 timer",
    "CreditEvent": "-1 start, 0 demand, 1 tick",
}

_STRUCTS: tuple[tuple[str, str, Record], ...] = (
    ("WindowEvent", "One acknowledgment, loss or timeout of a flow on a path.", WINDOW_EVENT),
    ("WindowResult", "What a window policy answers.", WINDOW_RESULT),
    ("PathEvent", "A burst that wants a path, or what came back from one.", PATH_EVENT),
    ("PathResult", "What a path policy answers to pick.", PATH_RESULT),
    (
        "PathHead",
        "The fields that begin every path record of the path family; the core writes them.",
        PATH_HEAD,
    ),
    ("LossEvent", "An acknowledgment on a path, or its timer.", LOSS_EVENT),
    (
        "LossResult",
        "Horizons: the core walks its send order and takes what lies behind for lost.",
        LOSS_RESULT,
    ),
    ("CreditEvent", "A sender's demand, or the receiver's tick.", CREDIT_EVENT),
    ("CreditResult", "What a credit policy answers.", CREDIT_RESULT),
)

_TYPES = {"i": "std::int64_t", "f": "double"}


def _aligned(lines: list[tuple[str, str]]) -> list[str]:
    """Declarations with their comments, in one column where they follow each other."""
    text: list[str] = []
    for index, (code, meaning) in enumerate(lines):
        first = last = index
        while first > 0 and lines[first - 1][1]:
            first -= 1
        while last + 1 < len(lines) and lines[last + 1][1]:
            last += 1
        column = max(len(other) for other, _ in lines[first : last + 1])
        text.append(f"{code:<{column}}  // {meaning}" if meaning else code)
    return text


def _struct(name: str, what: str, layout: Record) -> str:
    lines: list[tuple[str, str]] = []
    asserts = [f"static_assert(sizeof({name}) == {layout.size_bytes});"]
    fields = layout.dtype.fields
    assert fields is not None
    for field, (kind, offset, *_) in fields.items():
        meaning = _KINDS[name] if field == "kind" else _MEANING.get(field, "")
        if name == "WindowResult" and field == "window_bytes":
            meaning = ""  # what is answered, not what is in force
        lines.append((f"  {_TYPES[kind.kind]} {field};", meaning))
        asserts.append(f"static_assert(offsetof({name}, {field}) == {offset});")
    return "\n".join([f"// {what}", f"struct {name} {{", *_aligned(lines), "};", *asserts]) + "\n"


def header_text() -> str:
    """The whole of records.h."""
    kinds = (
        "// Kinds of a PathEvent.\n"
        "namespace path_kind {\n"
        "inline constexpr std::int64_t pick = 0, good = 1, ecn = 2, nack = 3, timeout = 4;\n"
        "}  // namespace path_kind\n"
    )
    structs = [_struct(*item) for item in _STRUCTS]
    return "\n".join([_TOP, kinds, *structs, "}  // namespace weft::policy\n"])
