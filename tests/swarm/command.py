"""`python -m tests.swarm`: runs random scenarios and writes those that break an invariant.

tests.swarm.finding checks each run. `weft sim` replays the written files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tests.swarm.crew import Crew, Task
from tests.swarm.draw import Tables, draw
from tests.swarm.finding import Finding, header, replay_command
from tests.swarm.shrink import RUNS_MAX, shrink, weight
from transport.cli import invoke
from transport.cli.options import SEED, SeedsType
from transport.cli.output import json_option, unwritten, write_json
from transport.cli.sim import INTERRUPTED
from transport.ground import created
from transport.ground.build_info import build_info, build_text
from transport.ground.toml import written
from transport.sim.errors import ScenarioError

COMMAND = "python -m tests.swarm"
WALL_S = 60.0  # a scenario takes some milliseconds, so a minute is probably a hang
CONFIRM_WALL_S = 240.0  # limit of the run that repeats a hanging scenario while no other runs
SHRINK_WALL_S = 10.0
SHRINK_S_MAX = 120.0
KINDS_SHRUNK_MAX = 5  # number of kinds of which the first finding is minimised
DEFAULT_SEEDS = "1-1000"


@dataclass
class Found:
    """A seed whose run broke an invariant: the finding, the scenario and its file."""

    seed: int
    finding: Finding
    tables: Tables | None
    file: str = ""
    row: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tally:
    """Progress of the search so far."""

    looked: int = 0
    runs: int = 0
    hops: int = 0
    found: list[Found] = field(default_factory=list)
    partial: bool = False


@dataclass(frozen=True)
class Wish:
    """The options of the command."""

    seeds: list[int]
    jobs: int
    minutes: float | None
    shrinks: bool
    first: bool
    out: Path


def tables_of(seed: int) -> Tables | None:
    try:
        return draw(seed)
    except ScenarioError:
        return None


def keep(wish: Wish, one: Found, tables: Tables, suffix: str) -> str:
    """Writes a scenario that reproduces a finding; returns the file's path.

    The file's time limit is the time at which the run ended, so that a replay ends there too.
    """
    file = wish.out / f"seed-{one.seed}{suffix}.toml"
    if one.finding.ended_ns and suffix == "":
        tables = {**tables, "limit_ns": one.finding.ended_ns}
    command = replay_command(str(file), one.seed, one.finding)
    try:
        wish.out.mkdir(parents=True, exist_ok=True)
        text = header(build_text(), one.seed, one.finding, command) + "\n" + written(tables)
        created.write_output(file, text)
    except OSError as error:
        raise unwritten(file, error) from None
    return str(file)


class Watch:
    """Shows the progress of the search on stderr, if that is a terminal."""

    def __init__(self, total: int) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()),
            *(TextColumn("{task.fields[said]}"), TimeElapsedColumn()),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("seeds", total=total, said="")

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def of(self, tally: Tally) -> None:
        said = f"{tally.hops / 1e6:.1f} M packet-hops, {len(tally.found)} findings"
        self._bar.update(self._task, completed=tally.looked, said=said)

    def shrinking(self, seed: int, runs: int, now: int) -> None:
        self._bar.update(
            self._task, description=f"shrinking {seed}", said=f"{runs} runs, {now} keys"
        )


def tasks(wish: Wish, began: float, tally: Tally) -> Iterator[Task]:
    """Yields a task per seed, until --minutes have passed or, with --first, a run broke a check."""
    for seed in wish.seeds:
        late = wish.minutes is not None and monotonic() - began > 60 * wish.minutes
        if late or (wish.first and tally.found):
            return
        yield Task(seed)


def note(wish: Wish, tally: Tally, seed: int, finding: Finding) -> None:
    """Records a finding and writes its file; prints the first one immediately."""
    tables = tables_of(seed)
    one = Found(seed, finding, tables)
    replay = f"{COMMAND} --seed {seed}"
    if tables is not None:
        one.file = keep(wish, one, tables, "")
        replay = replay_command(one.file, seed, finding)
    one.row = {
        "seed": seed,
        "kind": finding.kind,
        "text": finding.line(),
        "file": one.file,
        "replay": replay,
        "keys": weight(tables) if tables else 0,
    }
    tally.found.append(one)
    if len(tally.found) == 1:
        click.echo(f"seed {seed}: {' '.join(finding.line().split())}; replay: {replay}")


def smaller(wish: Wish, crew: Crew, one: Found, watch: Watch) -> None:
    """Minimises the scenario of a finding and writes the smaller one."""
    assert one.tables is not None
    until = monotonic() + SHRINK_S_MAX
    last: list[Finding] = []
    runs = 0

    def fails(tables: Tables) -> bool:
        nonlocal runs
        if monotonic() > until:
            return False
        runs += 1
        watch.shrinking(one.seed, runs, weight(tables))
        found = crew.one(Task(one.seed, tables, one.finding.kind == "P-8")).finding
        if found is None or found.kind != one.finding.kind:
            return False
        last[:] = [found]
        return True

    made = shrink(one.tables, fails, RUNS_MAX)
    small = Found(one.seed, last[0] if last else one.finding, made.tables)
    tables = made.tables
    if small.finding.ended_ns:
        tables = {**tables, "limit_ns": min(small.finding.ended_ns, tables["limit_ns"])}
    file = keep(wish, small, tables, "-small")
    replay = replay_command(file, one.seed, small.finding)
    one.row |= {
        "small_file": file,
        "small_text": small.finding.line(),
        "shrink_runs": runs,
        "small_keys": weight(made.tables),
        "small_replay": replay,
    }
    said = f"{one.row['keys']} keys to {one.row['small_keys']} in {runs} runs"
    click.echo(f"seed {one.seed}: shrunk from {said}; replay: {replay}")


def search(wish: Wish) -> Tally:
    """Runs all seeds, then minimises the first finding of each kind."""
    tally, began = Tally(), monotonic()
    doubted: list[int] = []
    with Watch(len(wish.seeds)) as watch, Crew(wish.jobs, WALL_S) as crew:
        try:
            for task, looked in crew.each(tasks(wish, began, tally)):
                tally.looked += 1
                tally.runs += looked.runs
                tally.hops += looked.hops
                if looked.finding is not None and looked.finding.kind == "hang":
                    doubted.append(task.seed)
                elif looked.finding is not None:
                    note(wish, tally, task.seed, looked.finding)
                watch.of(tally)
            crew.wall_s = CONFIRM_WALL_S
            for seed in doubted:
                again = crew.one(Task(seed)).finding
                once = Finding("hang", f"not finished in {WALL_S:g} s; a second run alone finished")
                note(wish, tally, seed, again or once)
            firsts = {one.finding.kind: one for one in reversed(tally.found)}
            crew.wall_s = SHRINK_WALL_S
            for one in list(firsts.values())[-KINDS_SHRUNK_MAX:] if wish.shrinks else []:
                if one.tables is not None:
                    smaller(wish, crew, one, watch)
        except KeyboardInterrupt:
            tally.partial = True
    return tally


@click.command("swarm")
@click.option("--seeds", type=SeedsType(), metavar="A-B", help="Seeds to run; by default 1-1000.")
@click.option("--seed", type=SEED, help="A single seed to run.")
@click.option("-j", "--jobs", type=click.IntRange(1, 1024), help="Parallel processes.")
@click.option(
    "--minutes",
    type=click.FloatRange(0.01, 10_000),
    help="Start no new seed after this many minutes.",
)
@click.option(
    "--shrink/--no-shrink",
    "shrinks",
    default=True,
    show_default=True,
    help="Look for a smaller scenario that fails in the same way.",
)
@click.option("--first", is_flag=True, help="Stop at the first finding.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("findings"),
    show_default=True,
    help="Folder for scenarios that break an invariant.",
)
@json_option
def command(
    seeds: list[int] | None,
    seed: int | None,
    jobs: int | None,
    minutes: float | None,
    shrinks: bool,
    first: bool,
    out: Path,
    json_path: str | None,
) -> int:
    """Run a random scenario for each seed and check the protocol's invariants P-1 to P-8.

    The exit status is 1 if a scenario breaks an invariant; `weft sim` replays its file in --out.

    Example: python -m tests.swarm --seeds 1-10000 -j 2
    """
    if seeds is not None and seed is not None:
        raise click.UsageError("--seed and --seeds cannot be used together: give one")
    chosen = seeds if seed is None else [seed]
    if chosen is None:
        chosen = SeedsType().convert(DEFAULT_SEEDS, None, None)
    wish = Wish(chosen, jobs or len(os.sched_getaffinity(0)), minutes, shrinks, first, out)
    began = monotonic()
    tally = search(wish)
    seconds = monotonic() - began
    found = {
        **build_info(),
        "seeds": [chosen[0], chosen[-1]],
        "looked": tally.looked,
        "runs": tally.runs,
        "packet_hops": tally.hops,
        "seconds": round(seconds, 1),
        "findings": [one.row for one in tally.found],
        "partial": tally.partial,
    }
    if json_path is not None:
        write_json(found, json_path)
    if json_path != "-":
        click.echo(
            f"{tally.looked:,} of {len(chosen):,} seeds, {tally.runs:,} runs, "
            f"{tally.hops / 1e6:.1f} M packet-hops in {seconds:.0f} s: {len(tally.found)} findings"
        )
    if tally.partial:
        click.echo(f"weft: interrupted: {tally.looked} of {len(chosen)} seeds", err=True)
        return INTERRUPTED
    return 1 if tally.found else 0


def main(arguments: list[str] | None = None) -> None:
    sys.exit(invoke(arguments, command, COMMAND))
