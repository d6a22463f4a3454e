"""Decides which failures of shipped policies are known: each with its cause, none forever.

Never touches a bound. An entry whose check passes fails the test: it is to be removed.
"""

from __future__ import annotations

_BACKOFF = (
    "the core doubles a path's timeout also for what was in flight when the path fell silent: each "
    "expiry then judges a few segments, and the last of them after rto_ns_max"
)

# (family, policy, check) -> why it fails.
KNOWN = {
    ("path", "bitmap", "lives on with a path dead"): _BACKOFF,
    ("path", "round_robin", "lives on with a path dead"): _BACKOFF,
    ("loss", "fixed", "all arrives: one path of two dead"): _BACKOFF,
    ("loss", "rack", "all arrives: one path of two dead"): _BACKOFF,
    ("loss", "sleek", "a copy each"): (
        "recovery may end and begin again within a round trip: what was just sent again, and is on "
        "its way, is then sent a second time"
    ),
    ("window", "bbr", "fair"): (
        "a flow that joins later takes the queue for part of its least round trip, never looks for "
        "a shorter one, and keeps nearly all of the link"
    ),
    ("window", "nscc", "cuts a round trip on ecn+rtt"): (
        "a quick adaptation does not count as the round trip's cut: a decrease may follow at once"
    ),
}
