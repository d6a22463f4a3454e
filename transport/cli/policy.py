"""`weft policy`: decides how registered policies are shown and how a policy file becomes a library.

Never compiles by itself: transport.compiler does, with its own refusals.
"""

import ast
from pathlib import Path

import click

from congestion.registry import Entry, RegistryError, policies
from transport.cli.check import command as check
from transport.cli.check import named
from transport.cli.output import json_option, print_table, write_json
from transport.cli.replay import command as replay
from transport.cli.try_policy import command as try_policy


@click.group("policy")
def policy_group() -> None:
    """List, write, check and compile policies."""


def summary(entry: Entry) -> str:
    """The first line of the policy's module, less the verb that begins it."""
    text = ast.get_docstring(ast.parse(Path(entry.policy.module).read_text(encoding="utf-8"))) or ""
    line = text.partition("\n")[0].rstrip(".")
    return line.removeprefix("Decides ")


@policy_group.command("list")
@json_option
def list_policies(json_path: str | None) -> None:
    """Every registered policy: family, name, what it decides, where it comes from."""
    try:
        entries = list(policies().values())
    except RegistryError as error:
        raise click.ClickException(str(error)) from None
    if json_path is not None:
        write_json([described(entry) for entry in entries], json_path)
        return
    print_table(
        ["family", "name", "decides", "from"],
        [
            (entry.policy.family.name, entry.policy.name, summary(entry), entry.origin)
            for entry in entries
        ],
    )


def described(entry: Entry) -> dict[str, object]:
    """One policy for machines."""
    policy = entry.policy
    defaults = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in policy.params.defaults.items()
    }
    return {
        "family": policy.family.name,
        "name": policy.name,
        "decides": summary(entry),
        "origin": entry.origin,
        "file": policy.module,
        "params": defaults,
        "flow_bytes": policy.flow.size_bytes,
        "shared_bytes": policy.shared.size_bytes,
    }


TEMPLATE = '''"""Decides the window of a flow: say how, and name the paper and section.

Never touches paths.
"""
# mypy: allow-untyped-defs

from congestion.api import record, window_policy

Flow = record(window_bytes=float)  # starts at zero; int or float fields, unit last
Params = record(increase_segments=1.0)  # an operator may set these


def on_start(flow, params, event, result):
    flow.window_bytes = max(event.hint_window_bytes, event.window_bytes_max / 8.0)
    result.window_bytes = flow.window_bytes


def on_ack(flow, params, event, result):
    share = event.acked_bytes / flow.window_bytes
    flow.window_bytes += params.increase_segments * event.segment_bytes * share
    result.window_bytes = flow.window_bytes


def on_loss(flow, params, event, result):
    flow.window_bytes = max(flow.window_bytes / 2.0, 16.0 * event.segment_bytes)
    result.window_bytes = flow.window_bytes


POLICY = window_policy(
    "{name}",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_loss,
)
'''


@policy_group.command("new")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def new(file: Path) -> None:
    """Write a window policy to FILE to start from."""
    name = file.stem.lower().replace(" ", "_")
    if file.suffix != ".py" or not name.replace("-", "_").isidentifier():
        raise click.UsageError(f"{file}: give a name of letters, digits and _ that ends in .py")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(TEMPLATE.replace("{name}", name))
    except FileExistsError:
        raise click.ClickException(f"{file} exists") from None
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from None
    click.echo(f"{file}: edit it, then weft policy check {file}")


@policy_group.command("compile")
@click.argument("policy", metavar="FILE|NAME")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="The library to write; <family>_<name>.so here when absent.",
)
@click.option("--cpu", default="", help="The CPU baseline: x86-64-v3 or aarch64.")
def compile_file(policy: str, out: Path | None, cpu: str) -> None:
    """Compile a policy, of a file or by its name, into a library that needs no Python."""
    from transport.compiler import PolicyError, compile_policy

    declared = named(policy)
    default = Path(f"{declared.family.name}_{declared.name}.so")
    try:
        written = compile_policy(declared, out or default, cpu=cpu)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from None
    click.echo(f"{written}: the {declared.family.name} policy {declared.name}")


policy_group.add_command(check)
policy_group.add_command(replay)
policy_group.add_command(try_policy)

command = policy_group
