"""Checks 20,000 times that a better network or GPU is never slower, and likewise of other things.

The relations are in bench/lib/monotone.py. A violation is printed with the number that repeats it.
"""

from __future__ import annotations

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from bench.lib.monotone import ANOMALY_MAX, HIDDEN_MAX, RELATIONS, Checked, checks
from transport.ground.units import percent

COLUMNS = ("relation", "checks", "equal", "anomalies", "violations", "worst")
NOTES = [
    "equal: neither value was larger; worst: by how much a value was larger that should not be",
    f"anomalies: of steps whose tasks slow each other, by at most {percent(ANOMALY_MAX)}, or "
    f"{percent(HIDDEN_MAX)} where communication in parts is compared with none",
]
SHOWN_MAX = 5  # violations that are printed whole


def counted(found: list[Checked]) -> list[Config]:
    """A row for each relation. worst: the largest ratio of an anomaly or violation, minus 1."""
    rows: list[Config] = []
    for name in RELATIONS:
        those = [one for one in found if one.relation == name]
        wrong = [one for one in those if not one.holds]
        odd = [one for one in those if one.is_anomaly]
        row: Config = {
            "relation": name,
            "checks": len(those),
            "equal": sum(one.is_same for one in those),
            "anomalies": len(odd),
            "violations": len(wrong),
        }
        if wrong or odd:
            row["worst"] = max(one.less / one.more for one in (*wrong, *odd)) - 1
        rows.append(row)
    return rows


@click.command("estimate_monotone")
@click.option("--checks", "count", default=20_000, show_default=True, type=click.IntRange(1, 10**7))
@click.option("--seed", default=1, show_default=True, type=int)
@json_option
def command(count: int, seed: int, json_path: str | None) -> None:
    """Checks that estimates move the right way: 20,000 pairs of drawn cases."""
    found: list[Checked] = []
    with interruptible() as cut:
        found.extend(checks(count, seed))
    wrong = [one for one in found if not one.holds]
    for one in wrong[:SHOWN_MAX]:
        off = percent(one.less / one.more - 1, signed=True)
        click.echo(f"{one.relation}, {off}: {one.case}", err=True)
    measures = {"violations": "lower", "anomalies": "lower"}
    more = {"keys": ["relation"], "measures": measures, "seed": seed}
    odd = sum(one.is_anomaly for one in found)
    notes = [*NOTES, f"{len(wrong)} of {len(found):,} checks are violated; {odd} are anomalies"]
    emit(document("estimate_monotone", counted(found), **more), json_path, COLUMNS, notes, cut)
