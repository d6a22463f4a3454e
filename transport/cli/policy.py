"""`weft policy`: decides how registered policies are shown and how a policy file becomes a library.

Never compiles by itself: transport.compiler does, with its own refusals.
"""

import ast
from pathlib import Path

import click

from congestion.registry import Entry, RegistryError, policies
from transport.cli.output import json_option, print_table, write_json


@click.group("policy")
def policy_group() -> None:
    """List and compile policies."""


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


@policy_group.command("compile")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="The library to write; <family>_<name>.so here when absent.",
)
@click.option("--cpu", default="", help="The CPU baseline: x86-64-v3 or aarch64.")
def compile_file(file: Path, out: Path | None, cpu: str) -> None:
    """Compile the policy that FILE declares into a library that needs no Python."""
    from transport.compiler import PolicyError, compile_policy
    from transport.compiler.source import load

    try:
        policy = load(file)
        default = Path(f"{policy.family.name}_{policy.name}.so")
        written = compile_policy(policy, out or default, cpu=cpu)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from None
    click.echo(f"{written}: the {policy.family.name} policy {policy.name}")


command = policy_group
