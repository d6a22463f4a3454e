"""Runs the checks for a policy of each family, in order."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance import (
    credit_checks,
    gates,
    longevity,
    loss_bench,
    loss_checks,
    loss_usual,
    path_bench,
    path_checks,
    recorded,
    signals,
    window_bench,
    window_checks,
    window_dumbbell,
    window_usual,
    wraps,
)
from transport.conformance.equality import Bout, Trial
from transport.conformance.portions import Portions
from transport.conformance.result import Outcome, Outcomes, excused, verdict
from transport.conformance.scenes import BYTES_PER_S, MS, Cast, cast_of
from transport.ground.units import bit_rate_text, time_text

FULL_EVENTS = 1_000_000
QUICK_EVENTS = 12_000

Progress = Callable[[str, float], None]  # called with the current phase and the share finished


@dataclass(frozen=True)
class Settings:
    """The thoroughness of the checks: number of events, seed, and shorter runs if `quick`."""

    events: int = FULL_EVENTS
    seed: int = 7
    quick: bool = False
    strict: bool = False  # values beyond what is usual in the field are failures, not warnings

    @property
    def limit_ns(self) -> int:
        """The virtual time that the longer simulator runs take."""
        return (120 if self.quick else 600) * MS


@dataclass(frozen=True)
class Report:
    """The outcomes of all checks of one policy."""

    policy: Policy
    outcomes: tuple[Outcome, ...]
    seconds: float
    strict: bool = False

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.fails(self.strict))

    @property
    def warnings(self) -> tuple[Outcome, ...]:
        return self._of("warning")

    @property
    def by_design(self) -> tuple[Outcome, ...]:
        """Properties that the algorithm itself lacks, as its file says with a reason."""
        return self._of("by design")

    @property
    def needless(self) -> tuple[str, ...]:
        """Properties that the file calls intrinsic, although every check of them passed."""
        lacked = {one.name for one in self.by_design}
        return tuple(name for name in self.policy.promises.intrinsic if name not in lacked)

    def _of(self, status: str) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.status(self.strict) == status)


def check_policy(
    policy: Policy,
    settings: Settings | None = None,
    progress: Progress = lambda what, share: None,
    enough: Callable[[Outcome], bool] = lambda outcome: False,
) -> Report:
    """Runs all checks of a policy; stops if it does not compile, or `enough(outcome)` is true."""
    settings = settings or Settings()
    begin = last = time.perf_counter()
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="weft-check-") as folder,
        closing(_all(policy, settings, Path(folder), progress)) as checks,
    ):
        for outcome in checks:
            now = time.perf_counter()
            outcome = excused(policy.promises, replace(outcome, seconds=now - last))
            outcomes.append(outcome)
            last = now
            if enough(outcome):
                break
    return Report(policy, tuple(outcomes), time.perf_counter() - begin, settings.strict)


def _all(
    policy: Policy, settings: Settings, folder: Path, progress: Progress
) -> Generator[Outcome, None, None]:
    progress("compiling", 0.0)
    language = gates.language(policy)
    yield language
    if not language.passed:
        return
    outcome, libraries, file = gates.compiled(policy, folder)
    yield outcome
    if not libraries:
        return
    yield from gates.state_size(policy)
    cast = cast_of(policy.family.name, file)
    progress("behaviour", 0.05)
    ledger = window_dumbbell.Ledger(policy)

    def counted(events: int) -> None:
        share = 0.3 + 0.7 * min(events / settings.events, 1.0)
        progress(f"{min(events, settings.events):,} events", share)

    with Portions(policy, libraries, settings.seed, settings.events, counted) as rest:
        library = libraries["from a file"]
        yield signals.as_declared(policy, library)
        yield from wraps.keeps_to_64_bits(policy, library, settings.seed)
        yield from with_failures(
            policy.family.name, library, _behaviour(policy, library, cast, ledger, settings)
        )
        yield from ledger.outcomes()
        if policy.family.name == "window" or (
            policy.family.name != "credit" and not settings.quick
        ):
            yield longevity.lives_long(policy, library, settings.seed)
        yield hooks_run_through(library)
        yield from same_in_every_form(policy, libraries, cast, settings, rest)


def _behaviour(
    policy: Policy,
    library: Library,
    cast: Cast,
    ledger: window_dumbbell.Ledger,
    settings: Settings,
) -> Iterator[Outcome | Outcomes]:
    """Yields the result of each check: one outcome, or several that are measured together."""
    limit_ns = settings.limit_ns
    if policy.family.name == "window":
        yield window_checks.starts(policy, library)
        yield window_checks.growth(policy, library)
        yield window_checks.cuts(policy, library)
        yield window_checks.regains(policy, library)
        yield window_checks.gives_way(policy, library)
        yield window_checks.meets(policy, library)
        yield window_checks.recovers(policy, library)
        yield window_checks.stays_a_window(policy, library)
        yield window_usual.answers(policy, library, cast, ledger)
        yield window_usual.resumes(policy, library)
        yield window_usual.grows_by_bytes(policy, library)
        yield window_dumbbell.alone(policy, cast, ledger, limit_ns)
        yield window_dumbbell.fills_others(policy, cast, ledger)
        yield window_dumbbell.fair(policy, cast, ledger, limit_ns)
        yield window_dumbbell.joins(policy, cast, ledger)
        yield window_dumbbell.converges(policy, cast, ledger)
        yield window_dumbbell.survives(policy, cast, ledger)
    elif policy.family.name == "path":
        yield path_checks.spreads(policy, library)
        yield path_checks.keeps_off(policy, library)
        yield path_checks.heeds(policy, library)
        yield path_checks.favours(policy, library)
        yield path_checks.shuns(policy, library)
        yield path_checks.heals(policy, library)
        yield path_checks.in_a_network(policy, cast, ledger, limit_ns)
        yield path_checks.alone(policy, cast, ledger, limit_ns)
    elif policy.family.name == "loss":
        yield loss_checks.repairs(policy, library)
        yield loss_checks.repairs_in_windows(policy, library)
        yield loss_checks.tolerates(policy, library)
        yield loss_checks.in_a_network(policy, cast, ledger)
        yield loss_usual.neighbours(policy, library)
        yield loss_usual.reordered(cast, ledger)
        yield loss_usual.rates(policy, library)
    else:
        yield credit_checks.grants(policy, library)
        yield credit_checks.ticks(policy, library)
        yield credit_checks.shares(policy, cast, ledger, limit_ns)
        yield credit_checks.alone(policy, cast, ledger)


# What a check without a network of its own is measured with.
HARNESS = {
    "window": f"one path without a network, RTT {time_text(window_bench.RTT_NS)}",
    "path": f"paths without a network, RTT {time_text(path_bench.RTT_NS)}, "
    f"a burst each {time_text(path_bench.GAP_NS)}",
    "loss": f"one path without a network, RTT {time_text(loss_bench.RTT_NS)}, "
    f"{loss_bench.RTT_NS // loss_bench.GAP_NS} segments a round trip",
    "credit": f"one sender to a port of {bit_rate_text(BYTES_PER_S)}",
}


def with_failures(family: str, library: Library, found: Iterator[Outcome | Outcomes]) -> Outcomes:
    """Yields the outcomes one by one, with a note if a hook failed during the check."""
    before = library.failures
    for group in found:
        for outcome in [group] if isinstance(group, Outcome) else group:
            outcome = replace(outcome, where=outcome.where or HARNESS[family])
            if library.failures > before:
                yield replace(outcome, measured=f"{outcome.measured}; a hook failed meanwhile")
            else:
                yield outcome
        before = library.failures


def hooks_run_through(library: Library) -> Outcome:
    """Checks that no hook failed in a test harness; in simulator runs the core counts failures."""
    return verdict(
        "hooks run through",
        not library.raised,
        library.raised or "nothing raised on a bench",
        "no failure",
        "a hook that fails is replaced by `fixed`: test for the condition first "
        '(weft docs policies "Finding a failure")',
    )


def same_in_every_form(
    policy: Policy,
    libraries: dict[str, Library],
    cast: Cast,
    settings: Settings,
    rest: Portions,
) -> Outcomes:
    """Checks equal results of the policy interpreted, compiled in memory, and from a .so file."""
    played = Bout(policy, libraries, settings.seed)
    for chunk in recorded.chunks(policy, cast, settings.quick):
        played.play(chunk)
    yield _equal("same on recorded events", played.trial)
    trial = rest.trial()
    yield _equal("same on random events", trial)
    unsound = (played.trial.unsound + trial.unsound)[:1]
    yield verdict(
        "answers in range",
        not unsound,
        unsound[0] if unsound else "all of them",
        "finite, usable as they are, and no failure on plausible events",
        "the core corrects finite answers without the policy's knowledge: clamp them in the "
        "policy; after a failed hook, inf or NaN `fixed` replaces the policy",
    )


def _equal(name: str, trial: Trial) -> Outcome:
    beyond = f", {trial.beyond} beyond 64 bits" if trial.beyond else ""
    return verdict(
        name,
        not trial.wrong,
        trial.wrong[0] if trial.wrong else f"{trial.events:,} events agree{beyond}",
        "interpreted, in the process and from a file: bit by bit",
        "look at the named event: a fault of the compiler, or an integer overflow in the policy",
    )
