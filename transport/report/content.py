"""The numbers of a report, each from the function that a command of weft prints as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from transport.diagnose import Diagnosis, Settings, diagnose, lost_time
from transport.diagnose.facts import facts_of, up_to
from transport.diagnose.located import hosts_of, located
from transport.diagnose.waits import Waits
from transport.errors import InvalidArgumentError
from transport.estimate.traced import Gain, Step, gains_of, steps_of, unfit
from transport.plan.routes import Routes
from transport.report.cells import CELLS_BYTES_MAX, Shown, shown
from transport.report.counters import Counters, counters_of
from transport.trace.about import About, about
from transport.trace.inventory import Inventory
from transport.trace.layout import TraceError
from transport.trace.places import ChoiceError
from transport.trace.profile import Sized, profile_of
from transport.trace.store import Store

Progress = Callable[[str, float], None]  # (what is computed now, share that is done)
HOUR_NS = 3600 * 10**9


@dataclass(frozen=True)
class Options:
    """What a user of the report gives.

    routes: the links of paths, from routes_file; "": it was found beside the trace. alone_ns: the
    time of a step without communication. now_ns: the time of day, for a job that still runs.
    price: of a GPU for an hour, in `currency`; None: not given. inventory: where ranks are, from
    inventory_file.
    """

    routes: Routes | None = None
    routes_file: str = ""
    alone_ns: int | None = None
    now_ns: int | None = None
    price: float | None = None
    currency: str = "USD"
    inventory: Inventory | None = None
    inventory_file: str = ""

    @property
    def inventory_words(self) -> list[str]:
        """The words of a command line that name the inventory."""
        return ["--inventory", self.inventory_file] if self.inventory_file else []


@dataclass(frozen=True)
class Cost:
    """What waiting for late ranks cost: hours of GPUs, one for each process.

    day_hours: what a day of a job like this one would lose. price: of an hour; None: not given.
    """

    job_hours: float
    lost_hours: float
    lost_share: float
    day_hours: float
    price: float | None

    def money(self, hours: float) -> float | None:
        """The price of some hours; None: no price was given."""
        return None if self.price is None else hours * self.price


@dataclass(frozen=True)
class Steps:
    """why: why there are none; "": there are. notes: what is missing in them."""

    each: tuple[Step, ...] = ()
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Content:
    """All numbers of a report. no_matrix: why there are no matrices; "": there are."""

    about: About
    found: Diagnosis
    lost: Waits
    matrices: tuple[Shown, ...]
    no_matrix: str
    sizes: tuple[Sized, ...]
    steps: Steps
    counters: Counters
    options: Options
    notes: tuple[str, ...] = ()
    size_notes: tuple[str, ...] = field(default=())

    @property
    def cost(self) -> Cost:
        lost, job = self.lost.waited_ns, self.lost.job_ns
        share = lost / job if job else 0.0
        day_hours = 24 * share * len(self.lost.each)
        return Cost(job / HOUR_NS, lost / HOUR_NS, share, day_hours, self.options.price)


def content_of(
    store: Store,
    options: Options,
    progress: Progress = lambda what, share: None,
    cells_bytes_max: int = CELLS_BYTES_MAX,
) -> Content:
    """Reads all that a report shows. TraceError if the tables of the store cannot be read."""
    progress("diagnosis", 0.0)
    facts, now_ns = facts_of(store), options.now_ns
    until_now = facts if now_ns is None else up_to(facts, now_ns)
    found = diagnose(store, Settings(routes=options.routes, now_ns=now_ns), until_now)
    if options.inventory is not None:
        found = located(found, options.inventory, dict(hosts_of(store)))
    progress("late ranks", 0.4)
    lost = lost_time(store, facts)
    progress("matrices", 0.6)
    matrices, no_matrix = _matrices(store, options, cells_bytes_max)
    progress("operations", 0.8)
    profile = profile_of(store)
    progress("steps", 0.9)
    steps = _steps(store, options.alone_ns)
    progress("counters", 0.95)
    return Content(
        about(store),
        found,
        lost,
        matrices,
        no_matrix,
        profile.by_size,
        steps,
        counters_of(store),
        options,
        tuple(store.notes()),
        profile.notes,
    )


def _matrices(store: Store, options: Options, most_bytes: int) -> tuple[tuple[Shown, ...], str]:
    try:
        return tuple(shown(store, options.routes, options.inventory, most_bytes)), ""
    except ChoiceError as error:
        return (), str(error)


def _steps(store: Store, alone_ns: int | None) -> Steps:
    if why := unfit(store):
        return Steps(why=f"the trace has {why}")
    try:
        each, notes = steps_of(store, alone_ns)
    except (TraceError, InvalidArgumentError) as error:
        return Steps(why=str(error))
    return Steps(tuple(each), tuple(gains_of(each)), tuple(notes))
