"""`weft policy replay`: compares recorded policy decisions with those of other policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import click
import numpy as np

from congestion.api import FAMILIES, Policy
from transport.cli import plots
from transport.cli.lookup import named, parameters
from transport.cli.options import output_file, owner as owner_of, owner_text
from transport.cli.output import json_option, print_table, write_json
from transport.cli.packages import COMPILING, PLOTS, need_packages
from transport.cli.replay_plot import DRAWN, draw, series
from transport.errors import InvalidArgumentError
from transport.ground.units import bytes_text, percent, rate_text
from transport.policies.choice import split
from transport.policies.recording import Recording, RecordingError, Step, read
from transport.policies.replay import Summary, Track, recorded, replay, summarize
from transport.policies.replay_native import ReplayedRecordings, replay_files

BARS = "▁▂▃▄▅▆▇█"
CELLS = 60


def sparkline(values: np.ndarray[Any, Any], cells: int = CELLS) -> str:
    """A one-line chart of a value over time: each character is the mean of a slice of time.

    Values that are not finite are left out; a slice without finite values is a blank.
    """
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return " " * min(cells, values.size)
    values = values / (float(np.abs(finite).max()) or 1.0)  # so that sums do not overflow
    parts = [part[np.isfinite(part)] for part in np.array_split(values, min(cells, values.size))]
    means = [float(part.mean()) if part.size else None for part in parts]
    known = [mean for mean in means if mean is not None]
    low, span = min(known), (max(known) - min(known)) or 1.0
    last = len(BARS) - 1
    return "".join(" " if one is None else BARS[round((one - low) / span * last)] for one in means)


def finite_answers(track: Track) -> np.ndarray[Any, Any]:
    """A mask of the answers whose fields are all finite."""
    return np.array([all(map(math.isfinite, answer)) for answer in track.answers], bool)


def summary_of(track: Track) -> Summary:
    """One policy's statistics for the table, computed from its finite answers only."""
    finite = finite_answers(track)
    if finite.all():
        return summarize(track)
    kept = replace(
        track,
        now_ns=list(compress(track.now_ns, finite)),
        owners=list(compress(track.owners, finite)),
        hooks=list(compress(track.hooks, finite)),
        answers=list(compress(track.answers, finite)),
    )
    if not kept.answers:
        return Summary(track.name, finite.size, track.differs, track.failures, {})
    return replace(summarize(kept), decisions=finite.size)


def figure_text(name: str, value: float) -> str:
    """A number with its unit, as text for a table."""
    if not math.isfinite(value):
        return "not finite"
    if "bytes_per_s" in name:
        return rate_text(value) if value else "unpaced"
    if "bytes" in name:
        return bytes_text(value)
    if name.startswith("share"):
        return percent(value)
    return f"{value:.0f}"


def rows_of(summaries: Sequence[Summary]) -> tuple[list[str], list[tuple[str, ...]]]:
    figures = list(next((one.figures for one in summaries if one.figures), {}))
    headings = ["policy", "decisions", "other answers", "failed"]
    headings += [name.removesuffix("_bytes").replace("_", " ") for name in figures]
    rows = [
        (
            one.name,
            str(one.decisions),
            "" if index == 0 else percent(one.differs / max(one.decisions, 1)),
            str(one.failures),
            *(figure_text(name, one.figures.get(name, math.nan)) for name in figures),
        )
        for index, one in enumerate(summaries)
    ]
    return headings, rows


def choose(steps: list[Step], owner: int | None) -> list[Step]:
    owners = sorted({step.owner for step in steps})
    if owner is None:
        return steps
    if owner not in owners:
        known = ", ".join(owner_text(one) for one in owners)
        raise click.UsageError(
            f"--owner {owner_text(owner)} has no decisions in this recording; choose one of {known}"
        )
    return [step for step in steps if step.owner == owner]


def decided(steps: list[Step]) -> Track:
    """The recorded decisions, labelled with the names of all policies that made them."""
    track = recorded(steps)
    names = dict.fromkeys(step.policy.name for step in steps)
    track.name = f"{', '.join(names)} (recorded)"
    return track


@dataclass(frozen=True)
class Wanted:
    """A policy of --policy. params: None: the recorded parameters, if it made the recording."""

    policy: Policy
    params: dict[str, Any] | None
    suffix: str


def wanted(word: str, family: str) -> Wanted:
    """Parses a --policy option: a policy of this family, with parameters."""
    name, colon, values = split(word)
    policy = named(name, "" if "/" in name else family)
    if policy.family.name != family:
        text = f"--policy {name} is a {policy.family.name} policy; give a {family} policy"
        raise click.UsageError(f"{text}, or --family {policy.family.name}")
    return Wanted(policy, parameters(policy, values) or None, colon + values)


def tried(one: Wanted, steps: list[Step]) -> Track:
    """The decisions of the policy on the recorded events."""
    from transport.compiler import PolicyError

    try:
        track = replay(one.policy, steps, params=one.params)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None
    track.name += one.suffix
    if track.other_version:
        text = "with its default parameters, not the recorded ones"
        text = f"recorded with another version of {one.policy.module}; it is replayed {text}"
        click.echo(f"{one.policy.name}: {text}", err=True)
    return track


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "names",
    multiple=True,
    help="A registered policy (NAME or FAMILY/NAME) or a .py file, with parameters as in "
    "swift:decrease_max=0.3; may be given several times.",
)
@click.option(
    "--family",
    type=click.Choice(list(FAMILIES)),
    help="Show this family's decisions; by default that of the first --policy, or window.",
)
@click.option(
    "--owner",
    "owner",
    type=owner_of,
    metavar="NUMBER|ENGINE:INDEX",
    help="Only the decisions of one flow, or of one peer for path policies. NUMBER is as in "
    "--json: 8 bits of engine, then 24 bits of index.",
)
@click.option(
    "--native",
    "natively",
    is_flag=True,
    help="Repeat every recorded decision with the compiled policy that made it and compare; "
    "--policy adds policies that are not shipped. Exit status 1 if an answer differs.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Read only this many decisions.")
@click.option("--plot", type=output_file(), help="Write a plot to this file.")
@json_option
def command(
    file: Path,
    names: tuple[str, ...],
    family: str | None,
    owner: int | None,
    natively: bool,
    limit: int | None,
    plot: Path | None,
    json_path: str | None,
) -> None:
    """Show the decisions recorded in FILE, and what other policies would have decided.

    Endpoint.record(), WEFT_RECORD_FILE=FILE and simulations write such files.

    Example: weft policy replay run.weftrec --policy dctcp --policy mine.py --plot windows.svg
    """
    if natively:
        if family is not None or owner is not None or limit is not None or plot is not None:
            raise click.UsageError("--native allows no --family, --owner, --limit or --plot")
        replay_again(file, names, json_path)
        return
    drawing = [PLOTS] if plot is not None else []
    need_packages("weft policy replay", *drawing, *([COMPILING] if names else []))
    pyplot = plots.prepared(plot) if plot is not None else None
    family = family or family_named(names)
    asked = [wanted(name, family) for name in names]
    try:
        recording = read(file, limit)
    except RecordingError as error:
        raise click.ClickException(str(error)) from None
    steps = choose(recording.of(family), owner)
    if not steps:
        there = ", ".join(f"{f} ({', '.join(n)})" for f, n in recording.policies().items())
        why = f"; {recording.damage}" if recording.damage else ""
        text = f"{file}: no {family} decisions; recorded policies: {there or 'none'}{why}"
        raise click.ClickException(text)
    tracks = [decided(steps), *(tried(one, steps) for one in asked)]
    if plot is not None:
        draw(pyplot, tracks, f"{file.name}: {family} policies", plot)
    if json_path is not None:
        write_json(document(recording, tracks), json_path)
    else:
        show(tracks)
        say_what_is_missing(recording)
    if recording.damage:
        raise click.ClickException(
            f"{recording.path}: {recording.damage}; only the decisions before the damage are "
            "shown: copy the file again, or record again"
        )


def replay_again(file: Path, names: Sequence[str], json_path: str | None) -> None:
    """Repeats every decision with the compiled policies and compares the answers."""
    words = [(named(split(name)[0]).family.name, split(name)[0]) for name in names]
    try:
        found = replay_files([file], words)
    except InvalidArgumentError as error:
        raise click.ClickException(str(error)) from None
    if json_path is not None:
        write_json(
            {**asdict(found), "decisions": found.decisions, "differ": found.differ}, json_path
        )
    else:
        show_again(found)
    if found.good:
        return
    unknown = [f"{one.family}/{one.name}" for one in found.policies if not one.known]
    if unknown:
        text = f"no compiled library matches the source of {', '.join(unknown)}: give --policy FILE"
    elif found.differ:
        text = f"{found.differ} of {found.decisions} differ; first: {found.first_difference}"
    else:
        text = found.damage or (
            f"{found.skipped} decisions skipped: their flows started before the recording"
        )
    raise click.ClickException(f"{file}: {text}")


def show_again(found: ReplayedRecordings) -> None:
    headings = ["family", "policy", "source", "decisions", "differ", "failed", "skipped", "by hook"]
    rows = [
        (
            *(one.family, one.name, one.source_sha256[:16], str(one.decisions), str(one.differ)),
            *(str(one.failed), str(one.skipped)),
            ", ".join(f"{hook} {count}" for hook, count in one.by_hook.items()),
        )
        for one in found.policies
    ]
    print_table(headings, rows)
    click.echo(f"{found.decisions} decisions, {found.differ} differ from the recording")
    if found.lost:
        click.echo(f"{found.lost} decisions were dropped: the recorder was full", err=True)


def say_what_is_missing(recording: Recording) -> None:
    if recording.lost:
        click.echo(f"{recording.lost} decisions were dropped: the recorder was full", err=True)
    if recording.cut:
        click.echo("the file ends in the middle of an entry: later decisions are missing", err=True)


def show(tracks: Sequence[Track]) -> None:
    """Prints the table, and a sparkline of the values that each policy answered."""
    print_table(*rows_of([summary_of(track) for track in tracks]))
    for track in tracks:
        for index, what, _ in DRAWN[track.family]:
            at_ms, values = series(track, index)
            finite = values[np.isfinite(values)]
            if track.family not in ("window", "credit") or not np.any(values):
                continue
            span = f"{at_ms[-1]:.1f} ms"
            if finite.size:
                span += f", {finite.min():.4g} to {finite.max():.4g}"
            if finite.size < values.size:
                span += f"; {values.size - finite.size} of {values.size} answers are not finite"
            click.echo(f"{track.name} {what}: {sparkline(values)} ({span})")


def family_named(words: Sequence[str]) -> str:
    """The family of the first policy on the command line."""
    return named(split(words[0])[0], first=True).family.name if words else "window"


def document(recording: Recording, tracks: Sequence[Track]) -> dict[str, Any]:
    """The --json document: every answer with its time, and statistics; null: not finite."""
    return {
        "lost_decisions": recording.lost,
        "cut": recording.cut,
        "damage": recording.damage,
        "policies": [
            {
                "name": track.name,
                "family": track.family,
                "differs": track.differs,
                "failures": track.failures,
                "not_finite": int(np.count_nonzero(~finite_answers(track))),
                "figures": summary_of(track).figures,
                "path_shares": list(summary_of(track).path_shares),
                "now_ns": track.now_ns,
                "owner": track.owners,
                "hook": track.hooks,
                "answers": [
                    [one if math.isfinite(one) else None for one in answer]
                    for answer in track.answers
                ],
            }
            for track in tracks
        ],
    }
