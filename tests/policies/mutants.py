"""Mistakes to plant in copies of shipped policies, one at a time, by replacing a piece of text.

Most were found in released transports. It is an error if a text does not occur exactly once, so
that a change of a policy cannot silently disable a mutant.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: the policy's file, the text and its replacement."""

    name: str
    file: str  # path relative to congestion/
    before: str
    after: str

    def planted(self) -> str:
        """The policy with the mistake; ValueError unless the text occurs exactly once."""
        source = (ROOT / "congestion" / self.file).read_text()
        count = source.count(self.before)
        if count != 1:
            raise ValueError(f"{self.name}: the text occurs {count} times in {self.file}")
        return source.replace(self.before, self.after)


_AIMD_GROWTH = "flow.window_bytes += params.increase_segments * event.segment_bytes * share"
_SWIFT_QUEUE = "            queue_ns -= max(event.rtt_min_ns, 0)\n"

MUTANTS = (
    # Mistakes in the growth of windows.
    Mutant(
        "growth_truncated_to_an_integer",
        "window/aimd.py",
        _AIMD_GROWTH,
        "flow.window_bytes += int(params.increase_segments * share) * event.segment_bytes",
    ),
    Mutant(
        "growth_assigned_and_not_added",
        "window/aimd.py",
        _AIMD_GROWTH,
        _AIMD_GROWTH.replace("+=", "="),
    ),
    Mutant(
        "growth_by_acknowledgments_and_not_by_bytes",
        "window/dctcp.py",
        "share = event.acked_bytes / flow.window_bytes",
        "share = event.segment_bytes / flow.window_bytes",
    ),
    Mutant(
        "additive_increase_in_bytes_where_segments_were_meant",
        "window/swift.py",
        "params.increase_segments * max(float(event.segment_bytes), 1.0)",
        "params.increase_segments",
    ),
    Mutant(
        "time_since_the_last_acknowledgment_and_not_the_epoch",
        "window/cubic.py",
        "flow.epoch_s += elapsed_s",
        "flow.epoch_s = elapsed_s",
    ),
    # Mistakes in cuts of windows.
    Mutant(
        "guard_against_a_second_cut_never_set",
        "window/swift.py",
        "        return flow.window_bytes\n    flow.last_cut_ns = event.now_ns\n",
        "        return flow.window_bytes\n",
    ),
    Mutant(
        "guard_against_a_second_cut_never_let_go",
        "window/aimd.py",
        "if waited and before_bytes >= flow.recover_bytes:",
        "if flow.last_cut_ns == 0:",
    ),
    Mutant(
        "cut_to_0.3_where_0.7_was_meant",
        "window/cubic.py",
        "flow.window_bytes *= params.decrease_factor",
        "flow.window_bytes *= 1.0 - params.decrease_factor",
    ),
    Mutant(
        "marks_never_read",
        "window/dctcp.py",
        "if event.ecn_segments > 0:\n        cut(",
        "if event.ecn_segments < 0:\n        cut(",
    ),
    Mutant(
        "losses_never_read",
        "window/dcqcn.py",
        "def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:\n"
        "    cut(flow, params, event)\n",
        "def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:\n",
    ),
    Mutant(
        "round_trip_difference_of_the_wrong_sign",
        "window/swift.py",
        _SWIFT_QUEUE,
        "            queue_ns = max(event.rtt_min_ns, 0) - queue_ns\n",
    ),
    Mutant(
        "absolute_time_taken_for_a_round_trip",
        "window/swift.py",
        _SWIFT_QUEUE,
        "            queue_ns = event.now_ns - max(event.rtt_min_ns, 0)\n",
    ),
    Mutant(
        "difference_wraps_and_poisons_the_average",
        "window/timely.py",
        "    queue_ns = max(float(event.rtt_ns) - base_ns, 0.0)\n",
        "    queue_ns = float(event.rtt_ns) - base_ns - 20e3\n"
        "    if queue_ns < 0.0:\n        queue_ns += 18446744073709551616.0\n",
    ),
    Mutant(
        "rate_computed_and_never_used",
        "window/timely.py",
        "    result.window_bytes = min(max(bound, least), most)\n"
        "    result.pacing_bytes_per_s = flow.rate\n",
        "    result.window_bytes = most\n    result.pacing_bytes_per_s = 0.0\n",
    ),
    Mutant(
        "pacing_at_a_constant",
        "window/dcqcn.py",
        "    result.window_bytes = min(max(bound, least), most)\n"
        "    result.pacing_bytes_per_s = flow.rate\n",
        "    result.window_bytes = least * 4.0\n    result.pacing_bytes_per_s = 8.4e8\n",
    ),
    Mutant(
        "window_falls_below_zero",
        "window/nscc.py",
        "flow.window_bytes = min(max(window_bytes, least), most)",
        "flow.window_bytes = min(window_bytes, most)",
    ),
    Mutant(
        "least_round_trip_never_learned",
        "window/bbr.py",
        "if flow.rtt_ns == 0 or event.rtt_ns <= flow.rtt_ns or old:",
        "if event.rtt_ns < flow.rtt_ns:",
    ),
    # Mistakes when a policy takes over a live flow.
    Mutant(
        "begins_at_a_rate_of_the_longest_wait",
        "window/dcqcn.py",
        "    round_trip_ns = float(event.srtt_ns)",
        "    round_trip_ns = params.wait_ns",
    ),
    Mutant(
        "begins_anew_whatever_was_there",
        "window/nscc.py",
        "        window_bytes = event.hint_window_bytes\n    answer",
        "        window_bytes = 0.0\n    answer",
    ),
    # Mistakes of path policies.
    Mutant(
        "path_never_answered_wins_every_draw",
        "paths/power_of_two.py",
        "return queued_ns + flow.mean_ns * path.untold_picks / params.untold_picks_per_mean",
        "return 0.0",
    ),
    Mutant(
        "timeout_never_penalises_a_path",
        "paths/bitmap.py",
        "        path.silent = 1\n        path.penalty = params.penalty_max\n        return 0\n",
        "        return 0\n",
    ),
    Mutant(
        "absolute_time_stored_as_a_path_s_round_trip",
        "paths/power_of_two.py",
        "sample_ns = float(event.rtt_ns)",
        "sample_ns = float(event.now_ns)",
    ),
    Mutant(
        "feedback_charged_to_another_path",
        "paths/bitmap.py",
        "    index = min(max(event.path, 0), len(paths) - 1)\n    weigh(",
        "    index = 0\n    weigh(",
    ),
    Mutant(
        "average_that_runs_away",
        "paths/power_of_two.py",
        "path.score_ns += params.smoothing * (sample_ns - path.score_ns)",
        "path.score_ns += params.smoothing * (path.score_ns - sample_ns)",
    ),
    Mutant(
        "copy_takes_the_path_that_lost_it",
        "paths/oblivious.py",
        "if event.is_resend != 0 and index == event.avoid_path:\n        return 1\n",
        "if event.is_resend < 0:\n        return 1\n",
    ),
    Mutant(
        "dead_path_is_picked",
        "paths/oblivious.py",
        "if paths[index].usable == 0:\n        return 2\n",
        "if paths[index].usable < 0:\n        return 2\n",
    ),
    Mutant(
        "last_path_never_picked",
        "paths/round_robin.py",
        "if index < len(paths) and barred",
        "if index < len(paths) - 1 and barred",
    ),
    Mutant(
        "draws_that_favour_the_first",
        "paths/oblivious.py",
        "turn = min(int(event.rand * count), count - 1)",
        "turn = min(int(event.rand * event.rand * event.rand * count), count - 1)",
    ),
    Mutant(
        "marked_paths_recycled",
        "paths/reps.py",
        "    if path.marked != 0:\n        bursts = -bursts\n",
        "",
    ),
    # Mistakes of loss policies.
    Mutant(
        "retransmit_storm",
        "loss/rack.py",
        "horizon_ns = max(min(event.newest_acked_sent_ns, event.now_ns - patience_ns), -1)",
        "horizon_ns = event.now_ns",
    ),
    Mutant(
        "fast_retransmit_out_of_reach",
        "loss/selective.py",
        "threshold_segments=3,  # DupThresh of RFC 6675",
        "threshold_segments=128,",
    ),
    Mutant(
        "reordering_taken_for_loss",
        "loss/selective.py",
        "if path.overtook_segments >= distance:",
        "if path.overtook_segments >= 1.0:",
    ),
    Mutant(
        "tail_never_judged",
        "loss/rack.py",
        "if oldest_ns >= 0 and oldest_ns <= overdue_ns:",
        "if oldest_ns < 0:",
    ),
    Mutant(
        "go_back_to_the_beginning_at_every_acknowledgment",
        "loss/go_back_n.py",
        "if 0 <= oldest_ns < event.newest_acked_sent_ns:",
        "if 0 <= oldest_ns:",
    ),
    Mutant(
        "count_kept_in_eight_bits",
        "loss/sleek.py",
        "event.sacked_segments >= reach",
        "event.sacked_segments % 256 >= reach",
    ),
    # Mistakes of credit policies.
    Mutant(
        "grant_taken_back",
        "credit/grant.py",
        "result.granted_bytes = max(granted_bytes, event.granted_bytes)",
        "result.granted_bytes = granted_bytes",
    ),
    Mutant(
        "late_flow_starves",
        "credit/grant.py",
        "share_bytes = min(max(share_bytes, least_bytes), 1e18)",
        "share_bytes = min(share_bytes * min(event.received_bytes, 1), 1e18)",
    ),
    Mutant(
        "granted_beyond_what_was_asked",
        "credit/eqds.py",
        "limit_bytes = min(event.demand_bytes, ahead_bytes)",
        "limit_bytes = ahead_bytes",
    ),
    Mutant(
        "pacer_that_keeps_no_time",
        "credit/eqds.py",
        "    port.clock_ns += int(min(pull_ns, 1e9))\n",
        "",
    ),
    Mutant(
        "headers_taken_for_nothing",
        "credit/eqds.py",
        "link_share=0.98,",
        "link_share=1.02,",
    ),
    # Mistakes that are possible in any family.
    Mutant(
        "record_larger_than_promised",
        "window/aimd.py",
        "    last_cut_ns=int,\n",
        "    last_cut_ns=int,\n    history=(0,) * 8,\n",
    ),
    Mutant(
        "reads_a_clock_of_its_own",
        "window/aimd.py",
        "    flow.timeouts = 0\n    if event",
        "    flow.timeouts = int(time.time()) * 0\n    if event",
    ),
    Mutant(
        "answers_that_are_no_number",
        "window/aimd.py",
        "result.pacing_bytes_per_s = 0.0",
        "result.pacing_bytes_per_s = flow.window_bytes * math.inf * 0.0",
    ),
)
