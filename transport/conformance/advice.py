"""Lists the properties that a policy could declare for its family and does not."""

from __future__ import annotations

from congestion.api import Policy
from congestion.promises import NOTHING

# Property of Promises -> the families for which it is checked.
_HELD = {
    "state_bytes_max": ("window", "path", "loss", "credit"),
    "growth_segments or growth_factor": ("window",),
    "cut_on with cut_factor and cuts_per_rtt": ("window",),
    "regain_s": ("window",),
    "utilization_min": ("window", "credit"),
    "fairness_min": ("window", "credit"),
    "convergence_rtts": ("window",),
    "spreads": ("path",),
    "dead_path_picks": ("path",),
    "heals_picks": ("path",),
    "repairs_rtts": ("loss",),
    "repairs_windows": ("loss",),
    "reorder_segments": ("loss",),
    "speculative_bytes": ("credit",),
    "port_queue_bytes_max": ("credit",),
}


def unpromised(policy: Policy) -> list[str]:
    """The properties that the policy could declare and does not."""
    promises = policy.promises
    missing = []
    for names, families in _HELD.items():
        words = [word for word in names.replace(" or ", " ").split() if word.isidentifier()]
        words = [word for word in words if hasattr(promises, word)]
        given = any(getattr(promises, word) != getattr(NOTHING, word) for word in words)
        if policy.family.name in families and not given:
            missing.append(names)
    return missing
