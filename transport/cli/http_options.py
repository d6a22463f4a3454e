"""Options of commands that serve metrics: who may read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from transport.live.http import Access, AccessError, access

Command = TypeVar("Command", bound=Callable[..., Any])


def access_options(command: Command) -> Command:
    """Adds --token-file, --tls-cert and --tls-key."""
    file = click.Path(path_type=Path, dir_okay=False)
    for option in (
        click.option(
            "--tls-key",
            metavar="FILE",
            type=file,
            help="The key of --tls-cert, as PEM, which nobody else can read.",
        ),
        click.option(
            "--tls-cert",
            metavar="FILE",
            type=file,
            help="Serve HTTPS with this certificate and its chain, as PEM.",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=file,
            help="Answer only requests with the header `Authorization: Bearer TOKEN`, "
            "where TOKEN is what FILE holds. Nobody else may be able to read FILE.",
        ),
    ):
        command = option(command)
    return command


def access_of(token_file: Path | None, tls_cert: Path | None, tls_key: Path | None) -> Access:
    """The access that the options describe; ClickException if a file cannot be used."""
    try:
        return access(token_file, tls_cert, tls_key)
    except AccessError as error:
        raise click.ClickException(str(error)) from None
