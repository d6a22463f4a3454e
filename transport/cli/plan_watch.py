"""`weft plan watch`: moves traffic away from paths over dead or slow links, and back later."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli.options import JSON, FiniteRange, output_file
from transport.ground.units import percent

if TYPE_CHECKING:
    from transport.plan.watch import Moved, Watch


LASTS_S = 1.0  # a shorter change of a path's state to slow, lossy or well is not reported
ALONE_S = 5.0  # if no process has sent to a planned peer for this long, a line reports it


@click.command("watch")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), default="plan.json", show_default=True
)
@click.option(
    "-o",
    "--weights",
    "weights_file",
    type=output_file(*JSON),
    default="weights.json",
    show_default=True,
    help="File of weights, which the processes of this host read.",
)
@click.option(
    "--pace",
    type=FiniteRange(0.02, 10),
    default=0.1,
    show_default=True,
    help="Seconds between two readings of the telemetry.",
)
@click.option(
    "--seconds", type=FiniteRange(0.1, 1e9), help="End after this many seconds; default: Ctrl-C."
)
@click.option(
    "--telemetry",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder of the telemetry pages.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be changed, and write nothing.")
def command(
    plan_file: Path,
    weights_file: Path,
    pace: float,
    seconds: float | None,
    telemetry: Path | None,
    dry_run: bool,
) -> int:
    """Move shares away from paths that died, slowed or lose much, and back when they are well.

    Run one on each host of the job. It reads the telemetry of the processes and writes weights,
    which processes follow if WEFT_WEIGHTS names that file, or if they run
    transport.plan.follow.Follower in a control loop of their own.

    Example: weft plan watch --plan plan.json -o /dev/shm/weights.json
    """
    from transport.errors import InvalidArgumentError
    from transport.plan import planfile
    from transport.plan.watch import Watch

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        watch = Watch(planfile.read(plan_file, steers=True), where=telemetry)
        if not watch.peers:
            raise click.ClickException(
                f"{plan_file} has no pair that sends from an address of this host: give the plan "
                "of this job, or run it on its hosts"
            )
        click.echo(f"watching paths to {', '.join(watch.peers)}; Ctrl-C ends it")
        until_s = time.monotonic() + seconds if seconds is not None else float("inf")
        follow(watch, None if dry_run else weights_file, pace, until_s)
    except KeyboardInterrupt:
        click.echo("ended; the weights stay as they are")
    except InvalidArgumentError as error:
        raise click.ClickException(str(error)) from None
    return 0


def follow(watch: Watch, weights_file: Path | None, pace_s: float, until_s: float) -> None:
    """Updates the weights every `pace_s` seconds until `until_s`, and writes those that changed."""
    from transport.plan import watch as watching

    written: watching.Weights | None = None
    due_s = begin_s = time.monotonic()
    alone, ignored, lasting = False, "", Lasting()
    while due_s < until_s:
        for one in lasting.of(watch.step(), time.monotonic()):
            click.echo(line_of(one, dry=weights_file is None))
        if watch.ignored != ignored:
            ignored = watch.ignored
            click.echo(ignored or "no telemetry page is ignored any more")
        if not alone and watch.processes == 0 and due_s > begin_s + ALONE_S:
            alone = True
            click.echo(
                "no process of this host sends to the peers of the plan, or their telemetry is off "
                "(WEFT_TELEMETRY)"
            )
        weights = watch.weights()
        if weights_file is not None and weights != written:
            watching.write(weights, weights_file)
            written = weights
        due_s = max(due_s + pace_s, time.monotonic())
        watching.wait(due_s)


class Lasting:
    """Reports a change of a path's state only if it lasts LASTS_S.

    On full links, paths are lossy for a moment again and again. A change to or from "dead" is
    reported at once.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, int, int], str] = {}  # last reported state
        self._waiting: dict[tuple[str, str, int, int], tuple[Moved, float]] = {}

    def of(self, moves: Sequence[Moved], now_s: float) -> list[Moved]:
        """The changes to report now. moves: those since the last call."""
        for one in moves:
            key = (one.page, one.peer, one.engine, one.change.path)
            known = self._told.setdefault(key, one.change.was)
            self._waiting.pop(key, None)
            if one.change.state != known:
                moved = replace(one, change=replace(one.change, was=known))
                at_once = "dead" in (known, one.change.state)
                self._waiting[key] = moved, now_s + (0.0 if at_once else LASTS_S)
        due = [key for key, (_, until_s) in self._waiting.items() if until_s <= now_s]
        made = [self._waiting.pop(key)[0] for key in due]
        self._told |= {key: one.change.state for key, one in zip(due, made, strict=True)}
        return made


def line_of(moved: Moved, *, dry: bool) -> str:
    change = moved.change
    over = f" over {' '.join(moved.links[1:-1])}" if moved.links else ""
    verb = "would carry" if dry else "now carries"
    stamp = time.strftime("%H:%M:%S")
    return (
        f"{stamp} process {moved.pid}: path {change.path} to {moved.peer}{over} is {change.state} "
        f"(was {change.was}): {verb} {percent(change.share)}"
    )
