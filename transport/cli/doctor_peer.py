"""`weft doctor --serve` and `--peer`: test the network between two hosts."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from transport.cli.output import print_table, write_json
from transport.cli.progress import progress_or_lines
from transport.errors import WeftError
from transport.host.uses import is_loopback

if TYPE_CHECKING:
    from transport.host.two_hosts import Finding, Server

ACCEPT_S = 1.0
IDLE_S = 60.0  # without a connection; whoever starts both ends needs less
HOST_MAX = 255


class PeerType(click.ParamType[tuple[str, int]]):
    """Parses HOST, HOST:PORT, [ADDRESS] and [ADDRESS]:PORT; port 0: the usual one."""

    name = "host[:port]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        text = str(value)
        host, colon, port = text.rpartition(":")
        if text.startswith("[") and text.endswith("]"):
            host, colon, port = text, "", ""
        elif not colon or (":" in host and not host.startswith("[")):
            host, colon, port = text, "", ""  # a name, or an IPv6 address without a port
        try:
            host.encode("idna" if host.isascii() else "utf-8")
        except UnicodeError:
            self.fail(f"{host[:80]!a}: no name or address of a host", param, ctx)
        if len(host) > HOST_MAX:
            self.fail(f"{host[:40]}...: no name of a host is so long", param, ctx)
        if text.startswith("[") and "]" not in text:
            self.fail(f"{text}: the ] after the address is missing", param, ctx)
        if colon and not (
            port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535
        ):
            self.fail(f"{text}: the port must be a number from 1 to 65535", param, ctx)
        host = host.removeprefix("[").removesuffix("]")
        if not host:
            self.fail(f"{text}: expected HOST or HOST:PORT", param, ctx)
        return host, int(port) if colon else 0


def serve(port: int) -> int:
    """Serves hosts that test the network to this one, until Ctrl-C or SIGTERM."""
    from transport.host.two_hosts import Server, verdict

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server = Server(port)
    except WeftError as error:
        raise click.ClickException(str(error)) from None
    with server:
        _announce(server)
        idle_until_s = time.monotonic() + IDLE_S
        while True:
            try:
                outcome = server.serve_one(ACCEPT_S)
            except (KeyboardInterrupt, SystemExit):
                if server.testing:
                    now = time.strftime("%H:%M:%S")
                    click.echo(f"{now} {server.testing}: ended while it was being tested")
                raise
            if outcome is None:
                if time.monotonic() > idle_until_s:
                    idle_until_s = math.inf
                    click.echo(
                        f"weft: no host has connected yet: if weft doctor --peer runs on one, a "
                        f"firewall drops TCP port {server.port}, or it dials another address"
                    )
                continue
            idle_until_s = math.inf
            said = outcome.failed or "tested; its report:"
            click.echo(f"{time.strftime('%H:%M:%S')} {outcome.name}: {said}")
            if outcome.findings:
                show(outcome.findings)
                click.echo(verdict(outcome.findings))


def _announce(server: Server) -> None:
    devices = server.endpoint.devices
    addresses = ", ".join(f"{one.address} ({one.name})" for one in devices)
    address = devices[0].address
    address, zone, _ = address.partition("%")
    address += "%NIC" if zone else ""
    shown = f"[{address}]" if ":" in address else address
    messages = f"; messages: TCP port {server.message_port}" if server.message_port else ""
    click.echo(
        f"weft: listening on TCP port {server.port} of all addresses; devices: {addresses}"
        f"{messages}; Ctrl-C ends it"
    )
    where = ", with the name of its interface for NIC" if zone else ""
    if all(is_loopback(one.address) for one in devices):
        click.echo(
            "weft: this host has no address that another host can reach: give a network interface "
            "one, or name the interface in WEFT_INTERFACES"
        )
        return
    click.echo(f"weft: on the other host run: weft doctor --peer {shown}:{server.port}{where}")


def test(peer: tuple[str, int], json_path: str | None, *, all_ports: bool) -> int:
    """Tests the network to the peer; returns the exit status.

    all_ports: tries every port of the two hosts' ranges, too.
    """
    from transport.host.two_hosts import BROKEN, examine, verdict
    from transport.host.two_hosts.ports import usual_port

    host, port = peer
    try:
        with progress_or_lines(host) as progress:
            findings = examine(host, port or usual_port(), progress, all_ports=all_ports)
    except WeftError as error:
        raise click.ClickException(f"{error}; weft doctor checks this host alone") from None
    if json_path is not None:
        write_json([asdict(one) for one in findings], json_path)
    else:
        show(findings)
        click.echo(verdict(findings))
    return int(any(one.state == BROKEN for one in findings))


def show(findings: Sequence[Finding]) -> None:
    """Prints the table of findings."""
    rows = [(one.subject, one.state, one.found, one.remedy) for one in findings]
    print_table(["", "state", "found", "remedy"], rows)
