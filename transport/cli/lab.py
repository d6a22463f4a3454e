"""`weft lab`: builds, changes, shows and removes network testbeds made of namespaces."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from transport.cli.others import CannotRunError, program_of
from transport.cli.output import json_option, print_table, write_json
from transport.ground.text import nearest
from transport.ground.units import bit_rate_text

if TYPE_CHECKING:
    from transport.lab import Counters, Lab

NAME_HELP = "The lab's name; needed if there are several."
SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
WHOLE = re.compile(r"[0-9]+(?:_[0-9]+)*")
REAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")

name_option = click.option("--name", metavar="NAME", help=NAME_HELP)


@contextmanager
def told() -> Iterator[None]:
    """Turns lab errors into one line: exit status 2 for a wrong lab file or option, else 1."""
    from transport.lab import LabError, LabModelError

    try:
        yield
    except LabModelError as error:
        raise click.UsageError(str(error)) from None
    except LabError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"the kernel refused a network change: {error}") from None


def telling(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def wrapped(*words: Any, **options: Any) -> Any:
        with told():
            return command(*words, **options)

    return wrapped


def names() -> list[str]:
    from transport.lab import state

    return state.names()


def chosen(name: str | None) -> str:
    """The given name, or the name of the only lab."""
    if name is not None:
        return name
    there = names()
    if not there:
        raise click.UsageError("no lab is up: weft lab up makes one")
    if len(there) > 1:
        raise click.UsageError(f"several labs are up: give --name, one of {', '.join(there)}")
    return there[0]


def attached(name: str | None) -> Lab:
    from transport.lab import Lab

    return Lab.attach(chosen(name))


@click.group("lab", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """A real multi-path network of namespaces on this host.

    Each host is behind a leaf router and every leaf is linked to every spine, so there are as many
    paths as spines. It needs root. It does not need the ip, tc, nft or ethtool commands.
    """


@command.command("up")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="The lab's name; by default the name in the file.")
@telling
def up(file: Path | None, name: str | None) -> None:
    """Build the lab that FILE describes; without FILE, 2 hosts and 4 paths of 1 Gb/s.

    Example: weft lab up mine.toml
    """
    from transport.lab import Lab, LabModel, load

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # remove a half-built lab, as on Ctrl-C
    model = load(file) if file is not None else LabModel()
    lab = Lab(model, name=name)
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(f"building {lab.name}"):
            lab.up()
    else:
        lab.up()
    hosts = [node for node in lab.plan.nodes if node.startswith("host")]
    shown = ", ".join(f"{host} {lab.address(host)}" for host in hosts[:4])
    click.echo(
        f"{lab.name}: {model.hosts} hosts, {model.spines} paths of "
        f"{bit_rate_text(model.uplinks.rate_bytes_per_s)}: {shown}{', ...' if hosts[4:] else ''}"
    )


@command.command("down")
@name_option
@click.option("--all", "every", is_flag=True, help="Every lab of this host.")
@telling
def down(name: str | None, every: bool) -> None:
    """Remove a lab, even if half built, and end the processes that still run in it."""
    from transport.lab import Lab, LabError, features, state

    features.require_rights()
    if every and name is not None:
        raise click.UsageError("--all and --name cannot be used together: give one")
    failed = 0
    for one in names() if every else [chosen(name)]:
        try:
            ended = Lab(state.load(one).model, name=one).down()
        except LabError as error:
            if not every:
                raise
            failed += 1  # remove the other labs nevertheless
            click.echo(f"{one}: {error}", err=True)
            continue
        click.echo(f"{one}: down" + (f", {ended} processes ended" if ended else ""))
    if failed:
        raise click.ClickException(f"{failed} labs could not be removed; see above")


@command.command(
    "exec",
    context_settings={"allow_interspersed_args": False},
)
@name_option
@click.argument("node", metavar="HOST")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
@telling
def execute(name: str | None, node: str, cmd: tuple[str, ...]) -> None:
    """Run CMD in HOST's network namespace. The exit status is the command's.

    Only the network differs: files and processes are those of this machine. HOST may be a router.

    Example: weft lab exec host0 -- ping -c 3 10.1.0.2
    """
    cmd = cmd[1:] if cmd[0] == "--" else cmd
    if not cmd:
        raise click.UsageError("give a command after --")
    enter = attached(name).enter(node)
    program = program_of(cmd[0])
    enter()
    try:
        os.execv(program, list(cmd))
    except OSError as error:
        raise CannotRunError(cmd[0], error) from None


def change_of(word: str) -> tuple[str, Any]:
    """Parses KEY=VALUE of the command line; the value gets the type that TOML would give it."""
    from transport.lab import LabModelError
    from transport.lab.model import LINK_KEYS

    key, equals, value = word.partition("=")
    if not equals:
        raise click.UsageError(f"{word}: expected key=value, such as loss=0.01")
    if key not in LINK_KEYS:
        raise LabModelError(f"a link has no key {key}{nearest(key, list(LINK_KEYS))}")
    if WHOLE.fullmatch(value):
        return key, int(value)
    if LINK_KEYS[key].kind == "share" and REAL.fullmatch(value):
        return key, float(value)
    return key, value


@command.command("set")
@name_option
@click.option(
    "--degrade",
    metavar="SHARE%",
    help="Run at this share of the rate that the link was built with; 100% restores it.",
)
@click.argument("link")
@click.argument("changes", metavar="[KEY=VALUE]...", nargs=-1)
@telling
def change(name: str | None, degrade: str | None, link: str, changes: tuple[str, ...]) -> None:
    """Change LINK in both directions while traffic runs. The keys are those of the lab file.

    Example: weft lab set leaf0-spine2 rate="500 Mb/s" loss=0.01
    """
    from transport.lab.model import link_fields

    if not changes and degrade is None:
        raise click.UsageError("nothing to change: give key=value or --degrade")
    fields = link_fields(dict(map(change_of, changes)))
    lab = attached(name)
    if degrade is not None:
        match = SHARE.fullmatch(degrade)
        if match is None or not 0 < float(match[1]) <= 100:
            raise click.UsageError(f"--degrade {degrade}: expected a share such as 25%")
        if "rate_bytes_per_s" in fields:
            raise click.UsageError("rate and --degrade cannot be used together: give one")
        fields["rate_bytes_per_s"] = lab.degraded_rate(link, float(match[1]) / 100)
    lab.set(link, **fields)


@command.command("cut")
@name_option
@click.option(
    "--down", is_flag=True, help="Take the upper (spine) end down: the other end has no carrier."
)
@click.argument("link")
@telling
def cut(name: str | None, down: bool, link: str) -> None:
    """Cut LINK: packets are dropped in both directions without any notice to routers or senders."""
    attached(name).cut(link, down=down)


@command.command("heal")
@name_option
@click.argument("link")
@telling
def heal(name: str | None, link: str) -> None:
    """Undo a cut of LINK. Changes made by `set` stay."""
    attached(name).heal(link)


def no_lab(json_path: str | None) -> None:
    if json_path is not None:
        write_json([], json_path)
    else:
        click.echo("no lab is up: weft lab up makes one")


def condition(lab: Lab, link: str) -> str:
    """Whether the link is up, cut or down, and "changed" if it differs from the lab file."""
    now = lab.current()
    words = [{"": "up", "silent": "cut", "down": "down"}[now.cut(link)]]
    if now.link(link) != lab.model.link(link):
        words.append("changed")
    return ", ".join(words)


def impairments(lab: Lab, link: str) -> str:
    """The link's loss, corruption, marking and delay, as text."""
    spec = lab.current().link(link)
    parts = [f"loss {spec.loss:g}"] if spec.loss else []
    parts += [f"every {spec.loss_every}"] if spec.loss_every else []
    if spec.burst_enter:
        parts.append(f"bursts {spec.burst_enter:g}/{spec.burst_leave:g}/{spec.burst_loss:g}")
    parts += [f"drops above {spec.up_bytes_max} B up"] if spec.up_bytes_max else []
    parts += [f"drops above {spec.down_bytes_max} B down"] if spec.down_bytes_max else []
    parts += [f"corruption {spec.corruption:g}"] if spec.corruption else []
    parts += [f"marks above {spec.ecn_bytes} B"] if spec.ecn_bytes else []
    parts += [f"delay {spec.delay_ns} ns"] if spec.delay_ns else []
    return ", ".join(parts)


def row(lab: Lab, direction: Any, counted: Counters) -> tuple[str, ...]:

    link = direction.wire.name
    numbers = (
        *(counted.packets, counted.bytes, counted.queue_drops, counted.losses),
        *(counted.cut_drops, counted.corrupted, counted.marked),
    )
    rate = bit_rate_text(lab.current().link(link).rate_bytes_per_s)
    state = (condition(lab, link), rate, impairments(lab, link))
    return (direction.name, *state, *map(str, numbers))


HEADINGS = (
    *("direction", "state", "rate", "impairments", "packets", "bytes", "queue full"),
    *("lost", "cut", "corrupted", "marked"),
)


def as_json(lab: Lab) -> dict[str, Any]:
    now, counters, plan = lab.current(), lab.counters(), lab.plan
    return {
        "name": lab.name,
        "built": True,
        "nodes": {
            node: {
                "namespace": plan.namespace(node),
                "addresses": [wire.end_at(node).address for wire in plan.wires_of(node)],
            }
            for node in plan.nodes
        },
        "links": {
            wire.name: {
                "cut": now.cut(wire.name),
                **asdict(now.link(wire.name)),
                "directions": {
                    one.name: asdict(counters[one.name]) for one in plan.directions_of(wire)
                },
            }
            for wire in plan.wires
        },
    }


@command.command("status")
@name_option
@json_option
@telling
def status(name: str | None, json_path: str | None) -> None:
    """Show every lab, or one: nodes, links, and packets carried and dropped per direction."""
    from transport.lab import Lab, state

    wanted = [name] if name is not None else names()
    if not wanted:
        no_lab(json_path)
        return
    half = [one for one in wanted if not state.load(one).built]
    labs = [Lab.attach(one) for one in wanted if one not in half]
    if json_path is not None:
        broken = [{"name": one, "built": False} for one in half]
        write_json([as_json(lab) for lab in labs] + broken, json_path)
        return
    for one in half:
        click.echo(f"{one}: half built; if no weft lab up is running: weft lab down --name {one}")
    for lab in labs:
        hosts = [node for node in lab.plan.nodes if node.startswith("host")]
        click.echo(f"{lab.name}: " + ", ".join(f"{one} {lab.address(one)}" for one in hosts))
        counters = lab.counters()
        print_table(HEADINGS, (row(lab, one, counters[one.name]) for one in lab.plan.directions))
