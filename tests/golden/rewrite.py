"""`make golden`: rewrites the tables, traces and plots, and prints which CSV files changed.

A person reviews the differences and gives the reason in the commit.
"""

from __future__ import annotations

from congestion.api import FAMILIES
from tests.golden import plots, tables, traces


def main() -> None:
    contents = {tables.path_of(family): tables.table(family) for family in FAMILIES}
    stages = traces.stages()
    contents |= {traces.path_of(stage): traces.trace(plan) for stage, plan in stages.items()}
    for path, content in contents.items():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
            print(f"{path.name}: written")
    plots.write_all(list(stages))


if __name__ == "__main__":
    main()
