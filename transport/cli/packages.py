"""Checks that the optional packages of a command are installed, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable

import click

from transport.ground.extras import absent, extras_for, install

TRACES, PAGES, PLOTS, COMPILING = "duckdb", "jinja2", "matplotlib", "numba"


def need_packages(what: str, *modules: str) -> None:
    """ClickException if modules are not installed; it names all extras that bring them."""
    lacking = absent(modules)
    if lacking:
        which = f"package {lacking[0]}" if len(lacking) == 1 else f"packages {_listed(lacking)}"
        command = install(*extras_for(lacking))
        raise click.ClickException(f"{what} needs the {which}: {command}")


def compiling(policies: Iterable[str | None]) -> tuple[str, ...]:
    """What the policies need to be compiled: nothing if none of them is a .py file.

    policies: as options take them, such as "window=mine.py:factor=0.5"; None: not given.
    """
    from transport.policies.choice import split

    files = [one for one in policies if one and split(one)[0].endswith(".py")]
    return (COMPILING,) if files else ()


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
