"""`weft diagnose --ras`: asks the RAS service of NCCL in a running job, twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli.doctor_peer import PeerType
from transport.cli.output import write_file

if TYPE_CHECKING:
    from transport.trace.beside import Beside

USUAL = "usual"  # the address, if --ras names none
APART_S = 6.0  # between the two questions: what does not move meanwhile hangs


class RasType(PeerType):
    """Parses HOST or HOST:PORT; port 0: the usual one."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, str) and ("/" in value or value in (".", "..")):
            text = f"{value}: write HOST:PORT, and the folder of a trace before --ras"
            self.fail(text, param, ctx)
        return ("", 0) if value == USUAL else super().convert(value, param, ctx)


def asked(address: tuple[str, int], save_path: Path | None) -> Beside:
    """Asks the service twice, and returns its statuses. save_path: where to write what it said."""
    from transport.host import nccl_ras
    from transport.trace.beside import statuses_of

    host, port = address if address[0] else nccl_ras.usual_address()
    port = port or nccl_ras.PORT
    texts, problem = [], ""
    try:
        texts.append(nccl_ras.ask(host, port))
        click.echo(f"weft: RAS of {host}:{port} answered; asking again in {APART_S:g} s", err=True)
        time.sleep(APART_S)
        texts.append(nccl_ras.ask(host, port))
    except nccl_ras.RasError as error:
        if not texts:
            raise click.ClickException(f"--ras: {error}") from None
        problem = f"RAS was asked again in vain, so there is one status only: {error}"
    if save_path is not None:
        write_file(save_path, "".join(texts))
        click.echo(f"wrote {save_path}", err=True)
    source = statuses_of(texts, f"the answer of {host}:{port}")
    source.notes = (*source.notes, *([problem] if problem else []))
    return source
