"""The input of the rules for slowness: the facts and measures of all windows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from transport.diagnose import places
from transport.diagnose.facts import Facts
from transport.diagnose.measures import Delays, Lateness
from transport.diagnose.paths import Paths
from transport.diagnose.windows import Windows


@dataclass(frozen=True)
class Rule:
    """A fault must be seen in at least `seen` of the last `of` time windows."""

    seen: int = 2
    of: int = 3


@dataclass(frozen=True, eq=False)
class Seen:
    """The input of the rules: the facts and measures of all windows."""

    facts: Facts
    windows: Windows
    lateness: Lateness
    delays: Delays
    paths: Paths | None

    @cached_property
    def places_of_paths(self) -> places.Candidates:
        """Candidates whose observations are paths: NICs, links and pairs."""
        assert self.paths is not None
        source, target = self.paths.ends[:, 0], self.paths.ends[:, 1]
        crossed = self.paths.crossings
        every = places.nics(self.facts, source, target)
        every += places.links(crossed, crossed.path, np.ones(len(crossed.path)), self.paths.names)
        return places.Candidates(every + places.pairs(self.facts, source, target))

    def recent(self, at: int, rule: Rule) -> slice:
        return slice(max(at + 1 - rule.of, 0), at + 1)


def confidence_of(times_the_limit: float) -> float:
    """Confidence: 0.7 at the limit, up to 0.99 far above it."""
    return float(round(min(0.99, 1 - 0.3 / max(times_the_limit, 1.0) ** 1.5), 2))
