"""Careless policies that pass the suite, each with the check that `--strict` finds it by.

They are changes of shipped policies and of an example. It is an error if a text does not occur
exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.policies.mutants import ROOT

WRAP = 1 << 32
ALL = '("loss_response", "timeout_response", "fairness", "newcomer_share", "utilization")'
EXAMPLE = "examples/my_policy.py"
_GROWTH = "    flow.window_bytes += event.segment_bytes * event.acked_bytes / flow.window_bytes\n"
_MARKS = "    if event.ecn_segments > 0:\n        cut(flow, params, event, result)\n"
_POLICY = "on_loss=cut, on_timeout=cut\n"
_IMPORT = "from congestion.api import record, window_policy\n"
_RATE = (
    "    result.window_bytes = min(max(bound, least), most)\n"
    "    result.pacing_bytes_per_s = flow.rate\n"
)
_SLOT = "event.now_ns - flow.used_ns[place] >= params.gap_ns"
_OLD = "event.now_ns - flow.rtt_stamp_ns >= params.rtt_believed_ns"


@dataclass(frozen=True, slots=True)
class Careless:
    """One policy: its file, the texts to replace in it, and the check that finds it."""

    name: str
    check: str
    file: str  # path relative to the repository's root
    changes: tuple[tuple[str, str], ...]

    def written(self) -> str:
        """The source of the policy; ValueError unless each text occurs exactly once."""
        source = (ROOT / self.file).read_text()
        for before, after in self.changes:
            count = source.count(before)
            if count != 1:
                raise ValueError(f"{self.name}: {before!r} occurs {count} times in {self.file}")
            source = source.replace(before, after)
        return source


def leaving_out(names: str) -> tuple[tuple[str, str], ...]:
    """Lets the example leave out properties without a reason."""
    return (
        (_IMPORT, _IMPORT + "from congestion.promises import Promises\n"),
        (_POLICY, _POLICY.replace("\n", f",\n    promises=Promises(without={names}),\n")),
    )


CARELESS = (
    # Arithmetic in 32 bits.
    Careless(
        "clock_in_nanoseconds_wraps",
        "clocks past 32 bits",
        "congestion/paths/flowlet.py",
        ((_SLOT, f"event.now_ns % {WRAP} - flow.used_ns[place] % {WRAP} >= params.gap_ns"),),
    ),
    Careless(
        "clock_in_milliseconds_is_cast_to_32_bits",
        "clocks past 32 bits",
        "congestion/window/bbr.py",
        (
            (
                _OLD,
                f"event.now_ns // 1_000_000 % {WRAP}"
                f" - flow.rtt_stamp_ns // 1_000_000 % {WRAP} >= 5",
            ),
        ),
    ),
    Careless(
        "unpaced_at_4_gib",
        "counters past 32 bits",
        "congestion/window/dcqcn.py",
        (
            (
                _RATE,
                _RATE + f"    if 0 <= event.delivered_bytes - {WRAP} < 100_000_000:\n"
                "        result.pacing_bytes_per_s = 0.0\n",
            ),
        ),
    ),
    Careless(
        "grants_counted_in_32_bits",
        "counters past 32 bits",
        "congestion/credit/grant.py",
        (
            (
                "received_bytes = min(max(event.received_bytes, 0), FAR)",
                f"received_bytes = event.received_bytes % {WRAP}",
            ),
        ),
    ),
    Careless(
        "sequence_numbers_are_signed_32_bits",
        "counters past 32 bits",
        "congestion/loss/sleek.py",
        (("event.cumulative_seq", f"event.cumulative_seq % {WRAP // 2}"),),
    ),
    Careless(
        "round_trips_in_31_bits",
        "sizes and times past 32 bits",
        "congestion/window/timely.py",
        (
            (
                "max(float(event.rtt_ns) - base_ns, 0.0)",
                f"max(float(event.rtt_ns % {WRAP // 2}) - base_ns, 0.0)",
            ),
        ),
    ),
    # Signals.
    Careless(
        "declares_marks_and_never_reads_them",
        "signals as declared",
        "congestion/window/swift.py",
        (('signals=("rtt",', 'signals=("rtt", "ecn",'),),
    ),
    Careless(
        "reads_marks_as_declared_and_ignores_them",
        "answers marks, as declared",
        "congestion/window/timely.py",
        (
            ('signals=("rtt",', 'signals=("rtt", "ecn",'),
            (
                "def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:\n",
                "def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:\n"
                "    if event.ecn_segments > 0:\n        flow.timeouts = 1\n",
            ),
        ),
    ),
    Careless(
        "draws_lots_without_saying_so",
        "signals as declared",
        "congestion/window/aimd.py",
        (
            (
                "flow.window_bytes *= params.decrease_factor",
                "flow.window_bytes *= 0.5 + 0.01 * event.rand",
            ),
        ),
    ),
    Careless(
        "heeds_losses_alone",
        "answers marks or delay",
        EXAMPLE,
        ((_MARKS, ""),),
    ),
    Careless(
        "reads_the_hint_alone",
        "response to loss",
        EXAMPLE,
        (
            (_GROWTH, ""),
            (_MARKS, ""),
            ("flow.window_bytes = max(flow.window_bytes * params.factor,", "max(0.0,"),
            *leaving_out(ALL),
        ),
    ),
    Careless(
        "never_falls_below_a_mebibyte",
        "response to timeouts",
        EXAMPLE,
        (
            ("window_bytes_min=131_072.0", "window_bytes_min=1_048_576.0"),
            *leaving_out('("loss_response", "timeout_response", "fairness", "newcomer_share")'),
        ),
    ),
    # Shares.
    Careless(
        "starves_the_flow_before_it",
        "a newcomer's share",
        "tests/policies/latecomer.py",
        (),
    ),
    Careless(
        "fits_one_rate_alone",
        "fills 100 Gb/s",
        EXAMPLE,
        (
            (_GROWTH, "    if flow.window_bytes < 300_000.0:\n    " + _GROWTH),
            ("event.window_bytes_max / 8.0", "65_536.0"),
        ),
    ),
    Careless(
        "grows_for_each_acknowledgment",
        "grows by bytes",
        EXAMPLE,
        (
            (_GROWTH, _GROWTH.replace("event.acked_bytes", "4.0 * event.segment_bytes")),
            ("window_bytes_min=131_072.0", "window_bytes_min=16_384.0"),
        ),
    ),
    Careless(
        "starves_after_idle_time",
        "resumes after idle time",
        EXAMPLE,
        (
            (
                _GROWTH,
                _GROWTH + "    if event.app_limited != 0:\n"
                "        flow.window_bytes = max(flow.window_bytes * 0.9, 8_192.0)\n",
            ),
        ),
    ),
    Careless(
        "grows_while_idle",
        "resumes after idle time",
        EXAMPLE,
        (
            (
                _GROWTH,
                _GROWTH + "    if event.app_limited != 0:\n"
                "        flow.window_bytes += event.acked_bytes\n",
            ),
        ),
    ),
    # Loss.
    Careless(
        "probes_at_every_acknowledgment",
        "probes a round trip",
        "congestion/loss/fixed.py",
        (
            (
                "    result.lost_sent_before_ns = -1\n"
                "    result.next_check_ns = -1\n    result.probe = 0\n",
                "    result.lost_sent_before_ns = -1\n"
                "    result.next_check_ns = -1\n    result.probe = 1\n",
            ),
        ),
    ),
    Careless(
        "probes_on_every_timer",
        "probes a round trip",
        "congestion/loss/fixed.py",
        (
            (
                "    result.lost_sent_before_ns = late_ns\n"
                "    result.next_check_ns = -1\n    result.probe = 0\n",
                "    result.lost_sent_before_ns = late_ns\n"
                "    result.next_check_ns = event.now_ns + 20_000\n    result.probe = 1\n",
            ),
        ),
    ),
    Careless(
        "checks_as_often_as_it_may",
        "timer checks a round trip",
        "congestion/loss/go_back_n.py",
        (
            (
                "    result.lost_sent_before_ns = timed_out_ns(event)\n"
                "    result.next_check_ns = -1\n",
                "    result.lost_sent_before_ns = timed_out_ns(event)\n"
                "    result.next_check_ns = event.now_ns + 1\n",
            ),
        ),
    ),
    Careless(
        "any_reordering_is_loss",
        "tolerates neighbours that change places",
        "congestion/loss/selective.py",
        (
            ("if path.overtook_segments >= distance:", "if path.overtook_segments >= 1.0:"),
            ("        reorder_segments=2,\n", ""),
        ),
    ),
    # Credit.
    Careless(
        "ticks_for_nobody",
        "ticks without demand",
        "congestion/credit/grant.py",
        (
            ("    if result.granted_bytes < event.demand_bytes:\n", "    if event.now_ns > 0:\n"),
            ("interval_ns=100_000", "interval_ns=10_000"),
        ),
    ),
    Careless(
        "grants_too_far_ahead",
        "does not flood the port",
        "congestion/credit/grant.py",
        (
            ("link_ns=500_000,", "link_ns=5_000_000,"),
            ("        port_queue_bytes_max=700_000,\n", ""),
        ),
    ),
)
