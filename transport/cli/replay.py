"""`weft policy replay`: decides how decisions, recorded and replayed, are shown side by side.

Never decides anything about a policy: transport.replay runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from congestion.api import FAMILIES
from congestion.registry import RegistryError
from transport.cli.output import json_option, print_table, write_json
from transport.recording import RecordingError, Step, read
from transport.replay import Summary, Track, named, recorded, replay, summarize

BARS = "▁▂▃▄▅▆▇█"
CELLS = 60

# What of each family's answers is drawn: place in the record, what it is, and its unit.
DRAWN = {
    "window": ((0, "window", "bytes"), (1, "pacing rate", "bytes/s")),
    "path": ((0, "path", ""),),
    "loss": ((2, "next check after the event", "ns"),),
    "credit": ((0, "granted", "bytes"),),
}


def sparkline(values: np.ndarray[Any, Any], cells: int = CELLS) -> str:
    """The course of a value in one line: means of equal shares of the decisions."""
    if values.size == 0:
        return ""
    means = [float(part.mean()) for part in np.array_split(values, min(cells, values.size))]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means)


def series(track: Track, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Time since the first decision, in ms, and one field of the answers."""
    now_ns = np.array(track.now_ns, np.float64)
    values = track.column(index)
    if track.family == "path":
        chosen = np.array([hook == "pick" for hook in track.hooks])
        now_ns, values = now_ns[chosen], values[chosen]
    if track.family == "loss":
        values = np.where(values < 0, np.nan, values - now_ns)
    start = now_ns[0] if now_ns.size else 0.0
    return (now_ns - start) / 1e6, values


def draw(tracks: Sequence[Track], title: str, out: Path) -> None:
    """A plot: one panel for each thing the family answers, one colour for each policy."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise click.UsageError("--plot needs matplotlib: pip install 'weft[plots]'") from None
    panels = DRAWN[tracks[0].family]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 3 * len(panels)), sharex=True, squeeze=False
    )
    for row, (index, what, unit) in enumerate(panels):
        axis = axes[row][0]
        for track in tracks:
            at_ms, values = series(track, index)
            style = {"marker": ".", "linestyle": "none", "markersize": 2}
            if track.family in ("window", "credit"):
                style = {"linewidth": 1.0, "drawstyle": "steps-post"}
            axis.plot(at_ms, values, label=track.name, **style)
        axis.set_ylabel(f"{what} ({unit})" if unit else what)
        axis.legend(loc="best", fontsize="small")
    axes[-1][0].set_xlabel("ms since the first decision")
    figure.suptitle(title)
    figure.tight_layout()
    try:
        figure.savefig(out)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot write {out}: {error}") from None
    pyplot.close(figure)


def figure_text(name: str, value: float) -> str:
    """A number with its unit, as a table shows it."""
    if "bytes_per_s" in name:
        return f"{value / 1e9:.3f} GB/s" if value else "unpaced"
    if "bytes" in name:
        return f"{value / 1024:.1f} KiB"
    if name.startswith("share"):
        return f"{value:.1%}"
    return f"{value:.0f}"


def rows_of(summaries: Sequence[Summary]) -> tuple[list[str], list[tuple[str, ...]]]:
    figures = list(summaries[0].figures)
    headings = ["policy", "decisions", "other answers", "failed"]
    headings += [name.removesuffix("_bytes").replace("_", " ") for name in figures]
    rows = [
        (
            one.name,
            str(one.decisions),
            "" if index == 0 else f"{one.differs / max(one.decisions, 1):.1%}",
            str(one.failures),
            *(figure_text(name, one.figures[name]) for name in figures),
        )
        for index, one in enumerate(summaries)
    ]
    return headings, rows


def choose(steps: list[Step], owner: int | None) -> list[Step]:
    owners = sorted({step.owner for step in steps})
    if owner is None:
        return steps
    if owner not in owners:
        known = ", ".join(str(one) for one in owners)
        raise click.UsageError(f"no decisions of {owner}; there are those of {known}")
    return [step for step in steps if step.owner == owner]


def tried(names: Sequence[str], family: str, steps: list[Step]) -> list[Track]:
    """Each policy over the same events."""
    from transport.compiler import PolicyError
    from transport.compiler.source import sha256

    tracks = []
    for name in names:
        try:
            policy = named(name, family)
            if policy.family.name != family:
                text = f"{name} is a {policy.family.name} policy; give a {family} policy"
                raise click.UsageError(f"{text}, or --family {policy.family.name}")
            tracks.append(replay(policy, steps))
        except (RegistryError, PolicyError) as error:
            raise click.UsageError(str(error)) from None
        then = {s.policy.source_sha256 for s in steps if s.policy.name == policy.name}
        if then and sha256(policy) not in then:
            click.echo(f"{policy.name}: recorded with another version of {policy.module}", err=True)
    return tracks


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "names",
    multiple=True,
    help="A registered policy or a .py file; may be given several times.",
)
@click.option(
    "--family",
    type=click.Choice(list(FAMILIES)),
    help="Which decisions; when absent, those of the first --policy, or window.",
)
@click.option("--owner", type=int, help="One flow (path family: one peer) only.")
@click.option("--limit", type=click.IntRange(min=1), help="The first so many decisions.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw into a file.")
@json_option
def command(
    file: Path,
    names: tuple[str, ...],
    family: str | None,
    owner: int | None,
    limit: int | None,
    plot: Path | None,
    json_path: str | None,
) -> None:
    """Show what was decided in FILE, and what other policies would have decided.

    A file comes from Endpoint.record(), from WEFT_RECORD_FILE=FILE, or from a simulation.

    Example: weft policy replay run.weftrec --policy dctcp --policy mine.py --plot windows.svg
    """
    try:
        recording = read(file, limit)
    except RecordingError as error:
        raise click.ClickException(str(error)) from None
    family = family or family_named(names)
    steps = choose(recording.of(family), owner)
    if not steps:
        there = ", ".join(f"{f} ({', '.join(n)})" for f, n in recording.policies().items())
        raise click.ClickException(f"{file}: no {family} decisions; there are {there or 'none'}")
    tracks = [recorded(steps), *tried(names, family, steps)]
    if plot is not None:
        draw(tracks, f"{file.name}: {family} policies", plot)
    if json_path is not None:
        write_json(document(recording.lost, recording.cut, tracks), json_path)
        return
    print_table(*rows_of([summarize(track) for track in tracks]))
    for track in tracks:
        for index, what, _ in DRAWN[family]:
            at_ms, values = series(track, index)
            if family in ("window", "credit") and np.any(values):
                span = f"{at_ms[-1]:.1f} ms, {values.min():.4g} to {values.max():.4g}"
                click.echo(f"{track.name} {what}: {sparkline(values)} ({span})")
    if recording.lost:
        click.echo(f"{recording.lost} decisions found no room while recording", err=True)
    if recording.cut:
        click.echo("the file ends in the middle of an entry: the rest was never written", err=True)
    if plot is not None:
        click.echo(f"{plot}: written")


def family_named(names: Sequence[str]) -> str:
    """The family of the first policy given."""
    if not names:
        return "window"
    for family in FAMILIES:
        try:
            return named(names[0], family).family.name
        except RegistryError:
            continue
        except Exception as error:  # a file's own errors are told by whoever compiles it
            raise click.UsageError(str(error)) from None
    raise click.UsageError(f"no policy {names[0]!r}: weft policy list shows what there is")


def document(lost: int, cut: bool, tracks: Sequence[Track]) -> dict[str, Any]:
    """For machines: every answer with its time, and the table's figures."""
    return {
        "lost_decisions": lost,
        "cut": cut,
        "policies": [
            {
                "name": track.name,
                "family": track.family,
                "differs": track.differs,
                "failures": track.failures,
                "figures": summarize(track).figures,
                "path_shares": list(summarize(track).path_shares),
                "now_ns": track.now_ns,
                "owner": track.owners,
                "hook": track.hooks,
                "answers": [list(answer) for answer in track.answers],
            }
            for track in tracks
        ],
    }
