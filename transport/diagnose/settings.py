"""The options of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field

from transport.diagnose.baseline import Baseline
from transport.diagnose.seen import Rule
from transport.plan.routes import Routes


@dataclass(frozen=True)
class Settings:
    """Options of a diagnosis. rule: in how many windows a fault must be seen.

    use_paths: False: judges only ranks and pairs of ranks, without weft's records of paths.
    routes: the links that each path crosses. from_window: no window before it is judged for
    slowness. now_ns: the time of day; a job that still runs on this host is judged up to then, any
    other one up to the end of its trace. patience_ns: a shorter pause never proves a hang, whatever
    pauses the trace shows. whole: the trace is one of a whole job, not the last part of one that
    runs: what repeats over the job, and lasting slowness without a place, are judged too.
    baseline: how long the job took when it was well.
    """

    rule: Rule = field(default_factory=Rule)
    use_paths: bool = True
    routes: Routes | None = None
    from_window: int = 0
    now_ns: int | None = None
    patience_ns: int = 0
    whole: bool = True
    baseline: Baseline | None = None
