"""Writes the HTML report of a run or sweep: one file with tables and inline plots, no script."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from typing import Any

from transport.sim import plots, tables
from transport.sim.result import IDEAL, Result

# The CSS of all HTML reports of weft.
STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
code, pre { background: #f4f4f4; padding: .1em .3em }
img { max-width: 100% }
"""

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title><style>
$style</style></head><body>
<h1>$title</h1>$warning
<p><code>$command</code></p>
$body
</body></html>
""")

PARTIAL = "<p><strong>Interrupted: these results are partial.</strong></p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; cells are escaped."""

    def line(tag: str, texts: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(one)}</{tag}>" for one in texts) + "</tr>"

    return f"<table>{line('th', heads)}{''.join(line('td', row) for row in rows)}</table>"


def _picture(result: Result) -> str:
    try:
        drawn = plots.svg(plots.figure(result))
    except ImportError:
        return f"<p>No plot: it needs matplotlib: {plots.INSTALL_MATPLOTLIB}</p>"
    data = b64encode(drawn.encode()).decode()
    return f'<img alt="plots" src="data:image/svg+xml;base64,{data}">'


def page(result: Result, command: str) -> str:
    """The report of one run."""
    own = result.scenario
    chosen = [[family, result.policies[family], result.sources[family][:16]] for family in
              result.policies]  # fmt: skip
    notes = [*tables.remarks(result), *own.network.notes]
    parts = [
        "<h2>Results</h2>",
        table(*tables.jobs(result)),
        f"<ul>{''.join(f'<li>{html.escape(note)}</li>' for note in notes)}</ul>",
        _picture(result),
        "<h2>Links</h2>",
        table(*tables.tiers(result)),
        "<h2>Policies</h2>",
        table(["family", "policy", "source"], chosen),
        "<h2>Scenario</h2>",
        f"<pre>{html.escape(own.text)}</pre>" if own.text else "",
        f"<p>Slowdown is FCT over ideal; {html.escape(IDEAL)}.</p>",
        f"<p>fingerprint <code>{result.fingerprint}</code></p>",
    ]
    return PAGE.substitute(
        style=STYLE,
        title=html.escape(f"weft sim {own.name}"),
        warning=PARTIAL if result.partial else "",
        command=html.escape(command),
        body="\n".join(parts),
    )


def sweep_page(
    name: str, rows: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]],
    command: str, partial: bool,
) -> str:  # fmt: skip
    """The report of a sweep: its summary, and every run."""
    heads = list(dict.fromkeys(key for row in every for key in row))
    runs = [[tables.cell(key, row.get(key)) for key in heads] for row in every]
    parts = [
        "<h2>Over the seeds</h2>",
        table(*tables.sweep(rows)),
        "<h2>Every run</h2>",
        table(heads, runs),
    ]
    return PAGE.substitute(
        style=STYLE,
        title=html.escape(f"weft sim {name}: a sweep"),
        warning=PARTIAL if partial else "",
        command=html.escape(command),
        body="\n".join(parts),
    )
