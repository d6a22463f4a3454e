"""`weft policy`: lists registered policies, writes templates and compiles policy files."""

import ast
import re
from pathlib import Path

import click

from congestion.api import FAMILIES
from congestion.registry import Entry
from transport.cli.check import command as check
from transport.cli.coexist import command as coexist
from transport.cli.lookup import named, registered
from transport.cli.options import output_file
from transport.cli.output import json_option, print_table, unwritten, write_json
from transport.cli.replay import command as replay
from transport.cli.templates import TEMPLATES
from transport.cli.try_policy import command as try_policy


@click.group("policy")
def policy_group() -> None:
    """List, write, check, compile, try, compare and replay policies."""


def summary(entry: Entry) -> str:
    """The first line of the policy's module docstring."""
    text = ast.get_docstring(ast.parse(Path(entry.policy.module).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


@policy_group.command("list")
@json_option
def list_policies(json_path: str | None) -> None:
    """List every registered policy: what it decides, its signals, state size and source."""
    known = registered()
    entries = list(known.entries.values())
    if json_path is not None:
        refused = [
            {"family": one.family, "name": one.name, "origin": one.place, "problem": one.text}
            for one in known.problems
        ]
        write_json([*(described(entry) for entry in entries), *refused], json_path)
        return
    print_table(
        ["family", "name", "decides", "signals", "state", "source"],
        [row_of(entry) for entry in entries],
    )
    for problem in known.problems:
        click.echo(f"NOT LISTED: {problem.text}")
    click.echo(
        "state: bytes per flow + bytes per path or port; parameters: weft policy list --json -"
    )


def row_of(entry: Entry) -> tuple[str, ...]:
    policy, promises = entry.policy, entry.policy.promises
    shared = f"+{policy.shared.size_bytes}" if policy.shared.size_bytes else ""
    source = promises.source or "none given"
    if not entry.origin.startswith("congestion."):
        source += f" (from {entry.origin})"
    return (
        policy.family.name,
        policy.name,
        summary(entry),
        " ".join(promises.signals),
        f"{policy.flow.size_bytes}{shared}",
        source,
    )


def described(entry: Entry) -> dict[str, object]:
    """One policy as a JSON object."""
    policy = entry.policy
    defaults = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in policy.params.defaults.items()
    }
    return {
        "family": policy.family.name,
        "name": policy.name,
        "decides": summary(entry),
        "source": policy.promises.source,
        "signals": list(policy.promises.signals),
        "origin": entry.origin,
        "file": policy.module,
        "params": defaults,
        "presets": {name: dict(values) for name, values in policy.presets.items()},
        "flow_bytes": policy.flow.size_bytes,
        "shared_bytes": policy.shared.size_bytes,
    }


@policy_group.command("new")
@click.argument("name")
@click.option("--family", type=click.Choice(sorted(FAMILIES)), default="window", show_default=True)
def new(name: str, family: str) -> None:
    """Write a working policy to start from, as NAME.py in this folder.

    NAME may also be a path that ends in .py.
    """
    file = Path(name if name.endswith(".py") else f"{name}.py")
    plain = file.stem.lower()
    if re.fullmatch(r"[a-z_][a-z0-9_-]{0,46}", plain, re.ASCII) is None:
        raise click.UsageError(
            f"{name}: a policy name has 1 to 47 letters, digits, _ or -, starting with a letter "
            "or _"
        )
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(TEMPLATES[family].replace("{name}", plain))
    except FileExistsError:
        raise click.UsageError(f"{file} exists already: give another name") from None
    except OSError as error:
        raise unwritten(file, error) from None
    click.echo(f"{file}: edit it, then weft policy check {file}")


@policy_group.command("compile")
@click.argument("policy", metavar="FILE|NAME")
@click.option(
    "-o",
    "--out",
    type=output_file(),
    help="The library to write; by default <family>_<name>.so in this folder.",
)
@click.option("--cpu", default="", help="The CPU baseline: x86-64-v3 or aarch64.")
def compile_file(policy: str, out: Path | None, cpu: str) -> None:
    """Compile a policy file or a registered policy into a library that needs no Python.

    This runs FILE as Python: compile only what you would run.
    """
    from transport.compiler import PolicyError, compile_policy, emit

    if cpu and cpu not in emit.BASELINES:
        known = " or ".join(sorted(emit.BASELINES))
        text = f"unknown CPU baseline {cpu!r}; give {known}"
        raise click.BadParameter(text, param_hint="'--cpu'")
    declared = named(policy)
    out = out or Path(f"{declared.family.name}_{declared.name}.so")
    try:
        written = compile_policy(declared, out, cpu=cpu)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise unwritten(out, error) from None
    click.echo(f"{written}: the {declared.family.name} policy {declared.name}")


policy_group.add_command(check)
policy_group.add_command(coexist)
policy_group.add_command(replay)
policy_group.add_command(try_policy)

command = policy_group
