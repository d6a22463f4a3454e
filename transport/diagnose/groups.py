"""Names all ranks that are slow together with a straggler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.chance import stepped_up
from transport.diagnose.finding import Finding
from transport.diagnose.own_times import own_beside
from transport.diagnose.peers import always_slower
from transport.diagnose.seen import Seen
from transport.diagnose.slower import change_of
from transport.diagnose.stragglers import LATE_SHARE
from transport.ground.units import time_text

Array = NDArray[Any]

OFTEN_SHARE = 0.5  # other ranks are stragglers, too, if late in this part of the windows
# So are those whose own time stepped up with the straggler's, by this part of that step, and is
# longer than before in this share of pairs of windows.
RISEN_SHARE, ABOVE_MIN = 0.5, 0.9
NAMED_MAX = 4


def with_all(seen: Seen, one: Finding) -> Finding:
    """The finding; a straggler's with all ranks that were late in half of its windows, or whose own
    time stepped up with its own, and with the time that the latest of them lost in these windows.

    In a pipeline, ranks behind a straggler are late as well, so only own times count there.
    """
    if one.kind != "non_communication_slow" or one.place.kind != "rank":
        return one
    first, last = seen.windows.of(np.array([one.from_ns, one.to_ns - 1]))
    own = seen.lateness.own[first : last + 1]
    late = own > LATE_SHARE * seen.windows.usual_ns
    names = [seen.facts.name(at) for at in range(len(seen.facts.processes))]
    mine = names.index(one.place.name)
    often = late.sum(axis=0) >= max(OFTEN_SHARE * len(own), 2)
    often &= bool((seen.facts.calls["kind"] == "collective").all())
    always = always_slower(seen.facts, seen.windows)
    if always[mine]:
        often |= always
    often = (often | _risen_with(seen, mine)) & one.certain
    others = [at for at in np.flatnonzero(often).tolist() if at != mine]
    lost_ns = int(np.where(late, own, 0.0)[:, [mine, *others]].max(axis=1).sum())
    if not others:
        return replace(one, lost_ns=lost_ns)
    every = np.sort([mine, *others])
    place = places.of_ranks(seen.facts, every)
    means_ns = {at: float(own[:, at].mean()) / seen.windows.iterations for at in others}
    worst = sorted(others, key=lambda at: -means_ns[at])[:NAMED_MAX]
    text = ", ".join(f"{names[at]} {time_text(means_ns[at])}" for at in worst)
    more = f" and {len(others) - len(worst)} more" if len(others) > len(worst) else ""
    evidence = f"{one.evidence} Late as well: {text}{more}."
    return replace(one, place=place, evidence=evidence, lost_ns=lost_ns)


def _risen_with(seen: Seen, mine: int) -> Array:
    """[process]: whether its own time, beside the median of all, stepped up with that of `mine`."""
    beside = own_beside(seen.facts, seen.windows)[1:-1]
    made = np.zeros(beside.shape[1], bool)
    known = np.flatnonzero(~np.isnan(beside).any(axis=0))
    if mine not in known:
        return made
    step = change_of(beside[:, mine], LATE_SHARE * seen.windows.usual_ns * RISEN_SHARE)
    if step is None:
        return made
    at, low, high = step
    # When it stepped up is known, so a lesser step of another rank is as clear.
    least = RISEN_SHARE * (high - low)
    made[known] = stepped_up(beside[:at, known], beside[at:, known], least, ABOVE_MIN)
    return made
