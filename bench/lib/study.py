"""Runs a study: interleaves contenders, summarises rows, reports missing contenders.

An interrupted study writes its partial results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click

from bench import peers
from bench.lib.common import (
    INTERRUPTED,
    INTERRUPTED_NOTE,
    Config,
    document,
    interruptible,
    local_notes,
    rounds,
)
from bench.lib.options import CHECKED, Columns, Common
from bench.lib.report import write
from bench.lib.stats import summarised
from bench.lib.traffic import Load
from transport.endpoint import knobs
from transport.lab.model import as_dict

CPU_BOUND_SHARE = 0.5
BUSY_SHARE = 0.1
IN_FLIGHT_LAB = 16
FEW = 50  # a rate computed from fewer messages is too coarse

Measure = Callable[[str], Iterable[Config]]


@dataclass(frozen=True)
class Study:
    """Describes the columns of a benchmark's results."""

    name: str
    keys: Sequence[str]  # columns that identify a row
    # Column -> `higher` or `lower`, whichever is better; `worst`: the column is the worst repeat's
    # value of the first measure.
    measures: Mapping[str, str]
    columns: Columns
    x: str = "size_bytes"  # column for the x axis of plots, if its values differ

    @property
    def table(self) -> Columns:
        """The table's columns: keys that `columns` lacks, then `columns`, then CHECKED."""
        shown = {key for key, _ in self.columns}
        first = [(key, key) for key in self.keys if key not in shown]
        return [*first, *self.columns, *CHECKED]


def chosen(common: Common, usual: Sequence[str], known: Sequence[str]) -> list[str]:
    """The contenders that --only names, or else the usual ones."""
    variants = [name for name in common.only if "weft" in known and name.startswith("weft/")]
    for name in common.only:
        if name not in known and name not in variants:
            raise click.UsageError(f"no contender {name!r}; choose from {', '.join(known)}")
    for name in variants:
        check_variant(name)
    named = [*(name for name in known if name in common.only), *dict.fromkeys(variants)]
    return named if common.only else list(usual)


def load_of(common: Common, size: int, duration_s: float, warmup_s: float) -> Load:
    """The load of flows; in a lab fewer messages are in flight, and each is counted singly."""
    if common.lab is None:
        return Load(size, duration_s, warmup_s)
    return Load(size, duration_s, warmup_s, in_flight_max=IN_FLIGHT_LAB, batch_max=1)


def check_variant(name: str) -> None:
    """Raises an error if a contender like `weft/window_policy=nscc` names an unknown knob."""
    fields = [row.field for row in knobs.table()]
    for word in name.split("/")[1:]:
        field, equals, _ = word.partition("=")
        if not equals or field not in fields:
            close = get_close_matches(field, fields, n=1)
            hint = f"; did you mean {close[0]}?" if close else ", as in weft/window_policy=nscc"
            raise click.UsageError(f"{name}: {word!r} is not KNOB=VALUE{hint} (see weft knobs)")


def present(names: Sequence[str]) -> tuple[list[str], list[Config]]:
    """The contenders that can run here, and the reasons why the others cannot."""
    there, missing = [], []
    for name in names:
        # A mixture such as `2 weft + 2 tcp-cubic` needs all its transports.
        reasons = [peers.missing(part.strip()) for part in name.split("+")]
        reason = next((one for one in reasons if one is not None), None)
        if reason is None:
            there.append(name)
        else:
            missing.append({"contender": name, "missing": reason})
    return there, missing


def conduct(
    study: Study,
    common: Common,
    contenders: Sequence[str],
    measure: Measure,
    settings: Config,
    notes: Callable[[Sequence[Config]], Iterable[str]] = lambda _: (),
) -> None:
    """Runs every contender once per round and writes the results; exits with 1 or 130 on errors."""
    there, missing = present(contenders)
    if not there:
        raise click.UsageError(f"nothing to run: {missing[0]['missing']}")
    rows: list[Config] = []
    failed: list[Config] = []
    with interruptible() as cut:
        for round_, name in rounds(common.repeats, there):
            # Add row by row, so that an interrupted contender keeps its rows.
            try:
                for row in measure(name):
                    row.pop("timeline_messages", None)  # only needed to compute a rate over time
                    rows.append({"contender": name, "round": round_, **row})
            except click.UsageError:
                raise
            except click.ClickException as error:
                failed.append({"contender": name, "round": round_, "failed": error.message})
    if common.lab is not None:
        # The lab's name contains the process number and is no setting.
        settings |= {"lab": {**as_dict(common.lab.model), "name": ""}}
        rows = [_of_lab(row) for row in rows]
    found = _found(study, rows, missing, settings) | {"failed": failed}
    if cut.short:
        found["partial"] = True
    said = [f"missing: {one['contender']}: {one['missing']}" for one in missing]
    said += [f"failed: {one['contender']}, round {one['round']}" for one in failed]
    said += local_notes(found)
    if cut.short:
        said.append(INTERRUPTED_NOTE)
    write(found, study.table, common, [*(notes(found["rows"]) if rows else ()), *said])
    if cut.short:
        click.get_current_context().exit(INTERRUPTED)
    if any(row.get("wrong") for row in rows):
        raise click.ClickException("message contents were wrong: the results are not valid")
    if failed:
        raise click.ClickException(f"{failed[0]['contender']}: {failed[0]['failed']}")


def _of_lab(row: Config) -> Config:
    """Sets cpu_share to the machine's busy share, because in a lab the kernel forwards packets."""
    shares = [row[key] for key in ("cpu_share", "machine_share") if row.get(key) is not None]
    return row | {"cpu_share": max(shares, default=None), "others_share": None}


def _found(study: Study, rows: list[Config], missing: list[Config], settings: Config) -> Config:
    made = summarised(rows, study.keys, study.measures)
    for row in made:
        row.pop("timeline_bytes_per_s", None)  # timelines of several runs have no median
        marks = ["cpu-bound"] if (row.get("cpu_share") or 0) > CPU_BOUND_SHARE else []
        # A row is marked if other processes loaded the machine, because that distorts its numbers.
        marks += ["busy machine"] if (row.get("others_share") or 0) > BUSY_SHARE else []
        # Rows of collectives have no counted_messages, as an option sets their iterations.
        marks += ["few messages"] if row.get("counted_messages", FEW) < FEW else []
        for column in study.measures:
            if never := row.get(f"{column}_never"):
                marks.append(f"{column}: never in {never} of {row['runs']}")
        row["note"] = ", ".join(marks)
    return document(
        study.name,
        made,
        keys=list(study.keys),
        measures=dict(study.measures),
        x=study.x,
        columns=[list(column) for column in study.table],
        settings=settings,
        peers=peers.versions(sorted({row["contender"] for row in rows})),
        missing=missing,
        rounds=rows,
    )
