"""Finds a link or NIC whose paths became unusable again and again, over the whole trace.

Full queues make paths unusable, too, here and there. A flapping link has more of that than chance
would have it: most of the events are on the few paths that cross it.
"""

from __future__ import annotations

import numpy as np

from transport.diagnose.finding import Finding, Place
from transport.diagnose.loss_places import LOSS_ADVICE
from transport.diagnose.losses import paths_fail
from transport.diagnose.seen import Seen
from transport.ground.units import percent

DOWNS_MIN = 8
DOWNS_SHARE = 0.5  # of all events that a place must have
CONTRAST = 10.0  # and this many times as many of them as its share of the paths
QUERY = (
    "SELECT process, peer, path, count(*) AS downs, min(time_ns) AS first_ns FROM events "
    "WHERE what = 'path_down' GROUP BY ALL ORDER BY downs DESC"
)


def flapping(seen: Seen) -> Finding | None:
    """The place that most events of unusable paths have in common, if there is one."""
    paths = seen.paths
    if paths is None or not len(paths.ends):
        return None
    downs = paths.downs.sum(axis=0)
    if downs.sum() < DOWNS_MIN:
        return None
    candidates = seen.places_of_paths
    count = candidates.summed(downs)
    crossing = candidates.summed(np.ones(len(downs)))
    expected = downs.sum() * crossing / len(downs)
    fits = (count >= max(DOWNS_MIN, DOWNS_SHARE * downs.sum())) & (count >= CONTRAST * expected)
    fits &= np.array([one.place.kind in ("link", "nic") for one in candidates.every])
    fits &= paths_fail(count, candidates.summed(paths.lost.sum(axis=0)))
    if not fits.any():
        return None
    # The place with the most events beyond chance; of equal ones, the one with the fewest paths.
    at = int(np.lexsort((crossing, -np.where(fits, count, -1.0)))[0])
    one = candidates.every[at].place
    both = [each for each, other in enumerate(candidates.every) if other.place.name == one.name]
    total = int(max(count[each] for each in both))
    # Paths to a real process that did not run fail as well, and look like those of its NIC.
    certain = one.kind == "link" or seen.facts.simulated
    times = seen.facts.downs["time_ns"][seen.facts.downs["what"] == "path_down"]
    return Finding(
        "network_loss",
        Place(one.kind, one.name, one.ranks),
        int(times.min()),
        int(times.max()),
        0.9 if certain else 0.6,
        certain,
        f"Paths became unusable {int(downs.sum())} times, {total} of them over {one.name}, which "
        f"{percent(float(crossing[at] / len(downs)))} of the paths cross: it goes down and comes "
        "back.",
        QUERY,
        LOSS_ADVICE[one.kind],
        weight=float(total),
        more={"downs": total},
    )
