"""Loads matplotlib before a long run, and writes figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from transport.cli.output import unwritten
from transport.cli.packages import PLOTS, need_packages


def prepared(out: Path, option: str = "--plot") -> Any:
    """Imports matplotlib.pyplot without a display and checks that it can write the file type."""
    need_packages(option, PLOTS)
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import backend_bases, pyplot

    types = backend_bases.FigureCanvasBase.get_supported_filetypes()
    if out.suffix.removeprefix(".").lower() not in types:
        known = ", ".join(f".{one}" for one in sorted(types))
        raise click.UsageError(f"{option} {out}: give a name that ends in one of {known}")
    return pyplot


def save(figure: Any, title: str, out: Path) -> None:
    """Writes the figure to a file and closes it."""
    from matplotlib import pyplot

    figure.suptitle(title)
    figure.tight_layout()
    try:
        figure.savefig(out)
    except OSError as error:
        raise unwritten(out, error) from None
    except ValueError as error:
        raise click.UsageError(f"cannot write {out}: {error}") from None
    finally:
        pyplot.close(figure)
    click.echo(f"wrote {out}", err=True)
