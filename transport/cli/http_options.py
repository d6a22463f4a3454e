"""Options of commands that serve metrics or pages: where, and who may read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from transport.live.http import Access, AccessError, access

Command = TypeVar("Command", bound=Callable[..., Any])
PORT_MAX = 65_535


def address(given: str) -> tuple[str, int]:
    """Parses HOST:PORT, with an IPv6 address in brackets."""
    host, _, port = given.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    number = int(port) if port.isascii() and port.isdigit() else PORT_MAX + 1
    if not host or number > PORT_MAX:
        raise click.BadParameter(f"{given}: write HOST:PORT, such as 127.0.0.1:9464.")
    return host, number


def in_url(host: str) -> str:
    """A host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def access_options(command: Command) -> Command:
    """Adds --token-file, --tls-cert and --tls-key."""
    token = click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Answer only requests with the header `Authorization: Bearer TOKEN`, "
        "where TOKEN is what FILE holds. Nobody else may be able to read FILE.",
    )
    return token(tls_options(command))


def tls_options(command: Command) -> Command:
    """Adds --tls-cert and --tls-key."""
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
    ):
        command = option(command)
    return command


def access_of(token_file: Path | None, tls_cert: Path | None, tls_key: Path | None) -> Access:
    """The access that the options describe; ClickException if a file cannot be used."""
    try:
        return access(token_file, tls_cert, tls_key)
    except AccessError as error:
        raise click.ClickException(str(error)) from None
