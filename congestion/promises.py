"""The declared properties of a policy: its source, the signals that it uses, and its behaviour.

transport.conformance measures the declared properties, and those required of every window policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Properties required of every window policy, unless it lists them in `without`.
OWED = ("loss_response", "timeout_response", "fairness", "newcomer_share", "utilization")
# Properties that `intrinsic` may name: an algorithm may lack them, and a mistake is none of them.
PROPERTIES = (
    *OWED,
    "congestion_response",
    "standing_queue",
    "timer_rate",
    "probe_rate",
    "reordering",
    "one_copy",
)
SIGNALS = (
    "rtt",
    "host_delay",
    "ecn",
    "int",  # in-band network telemetry: what switch ports stamped into a segment
    "loss",
    "timeout",
    "rate",
    "credit",
    "chance",
    "weights",
)

WORDS_MIN = 3  # of a reason in `intrinsic`

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Promises:
    """The declared properties of a policy. A field left at None (or empty) declares nothing.

    Window policies. They are measured in round trips of a fixed length; a full window is
    acknowledged in each (app_limited is 0).

    source: paper or specification, with the section.
    signals: which of SIGNALS it decides by.
    state_bytes_max: upper bound of the flow record plus one path or port record, bytes.
    growth_segments: least and most growth of the window in a round trip without congestion, in
        segments, after any fast start (from `steady_window_segments` on).
    growth_factor: least and most growth as a factor per round trip, for policies with
        multiplicative or logarithmic growth.
    cut_on: the signals that shrink the window, each alone: "loss", "ecn" or "rtt" (a standing
        queue of `cut_queue_rtts` minimum RTTs). "ecn+rtt" means: only both together.
    cut_factor: least and most ratio of the window after a congested round trip to the one before.
    cuts_per_rtt: how often the window may shrink in one congested round trip.
    regain_s: least and most seconds until a window of 1,000 segments, cut by one loss, is back at
        99 % of its size, at an RTT of 50 ms.
    fairness_min: Jain's index of the goodput of four equal flows at one bottleneck.
    convergence_rtts: round trips until a flow that joins another one has at least half and at most
        twice its fair share.
    utilization_min: share of a bottleneck that one flow fills.
    without: which properties of OWED the policy lacks on purpose. Every window policy must have the
        others: losses at least halve the bytes in flight, and so do timeouts; four equal flows
        reach a Jain's index of 0.6; a flow that meets a larger one gets at least a quarter of its
        fair share; one flow uses half of a bottleneck. `weft policy check` still measures them and
        warns, and `--strict` fails them.
    intrinsic: which of PROPERTIES the algorithm itself lacks, each with the reason, such as
        {"newcomer_share": "RFC 6817, section 4.4: a latecomer measures the queue as its base"}.
        `weft policy check` shows the measured value and the reason; `--strict` does not fail it.

    Path policies:

    spreads: every healthy path gets at least half of its fair share.
    dead_path_picks: how often a path that drops everything (the core reports timeouts) is picked
        before its share falls below a tenth of the fair share.
    heals_picks: picks after a dead path recovers until it has half of its fair share.

    Loss policies:

    reorder_segments: how far a segment may be reordered within one path, in segments, without
        being declared lost.
    repairs_rtts: round trips after which a single lost segment is declared lost, if others were
        delivered after it on the same path.
    repairs_windows: windows of segments delivered after a lost one until it is declared lost,
        without any timeout.

    Credit policies (fairness_min and utilization_min hold for senders to one port):

    speculative_bytes: most bytes granted beyond a sender's demand, at 10 Gb/s.
    port_queue_bytes_max: 99th percentile of the queue length at a port of 10 Gb/s with eight
        senders.
    """

    source: str = ""
    signals: tuple[str, ...] = ()
    state_bytes_max: int | None = None
    growth_segments: Range | None = None
    growth_factor: Range | None = None
    steady_window_segments: int = 0
    cut_on: tuple[str, ...] = ()
    cut_queue_rtts: float = 4.0
    cut_factor: Range | None = None
    cuts_per_rtt: int | None = None
    regain_s: Range | None = None
    fairness_min: float | None = None
    convergence_rtts: int | None = None
    utilization_min: float | None = None
    without: tuple[str, ...] = ()
    intrinsic: Mapping[str, str] = field(default_factory=dict, hash=False)
    spreads: bool = False
    dead_path_picks: int | None = None
    heals_picks: int | None = None
    reorder_segments: int | None = None
    repairs_rtts: float | None = None
    repairs_windows: float | None = None
    speculative_bytes: int | None = None
    port_queue_bytes_max: int | None = None

    def __post_init__(self) -> None:
        cuts = [signal for together in self.cut_on for signal in together.split("+")]
        for signal in (*self.signals, *cuts):
            if signal not in SIGNALS:
                raise ValueError(f"no signal {signal!r}: choose from {', '.join(SIGNALS)}")
        for name in self.without:
            if name not in OWED:
                raise ValueError(f"without {name!r}: choose from {', '.join(OWED)}")
        for name, reason in self.intrinsic.items():
            if name not in PROPERTIES:
                raise ValueError(f"intrinsic {name!r}: choose from {', '.join(PROPERTIES)}")
            if not isinstance(reason, str) or len(reason.split()) < WORDS_MIN:
                raise ValueError(f"intrinsic {name!r}: give the reason as text, not {reason!r}")
        for name in ("growth_segments", "growth_factor", "cut_factor", "regain_s"):
            given = getattr(self, name)
            if given is not None and not given[0] <= given[1]:
                raise ValueError(f"{name} {given!r}: give the smaller value first")


NOTHING = Promises()
