"""Finds the policy that a command-line argument names, and parses its parameters.

An unknown name is a usage error (exit status 2). A policy that exists and cannot be loaded is a
failure (exit status 1).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from congestion.api import FAMILIES, Policy
from congestion.registry import Registry, RegistryError, survey
from transport import native
from transport.policies.choice import values_of


def registered() -> Registry:
    """All registered policies; raises ClickException if the registry cannot be read."""
    try:
        return survey()
    except RegistryError as error:
        raise click.ClickException(str(error)) from None


def is_file(text: str) -> bool:
    """Whether the text names a file rather than a registered policy."""
    return text.endswith(".py") or os.path.isfile(text)


def loaded(file: str) -> Policy:
    """The policy that a file declares."""
    from transport.compiler import PolicyError
    from transport.compiler.source import load

    try:
        if not Path(file).is_file():
            raise click.UsageError(f"{file}: no such file")
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    if file.endswith(".so"):
        raise click.UsageError(f"{file}: a compiled library has no source; give the .py file")
    try:
        return load(file)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None


def named(text: str, family: str = "", first: bool = False) -> Policy:
    """The policy that the text names: a file, a registered name, or family/name.

    family: accept only this family. first: if several families have the name, take the first.
    """
    if is_file(text):
        return loaded(text)
    if os.path.isdir(text) and "/" in text:
        raise click.UsageError(f"{text} is a folder: give the .py file of a policy")
    head, _, name = text.rpartition("/")
    known = registered()
    entries = known.entries
    found = [
        (one, name)
        for one in FAMILIES
        if (one, name) in entries and head in ("", one) and family in ("", one)
    ]
    problems = known.problems_of(head or family, name)
    for problem in problems if found else ():
        click.echo(f"warning: {problem.text}", err=True)
    if problems and not found:
        raise click.ClickException(problems[0].text)
    if not found:
        kind = f"{family} policy" if family else "policy"
        names = ", ".join(sorted(f"{a}/{b}" for a, b in entries if family in ("", a)))
        raise click.UsageError(f"no {kind} or file named {text!r}: choose one of {names}")
    if len(found) > 1 and not first:
        choices = " or ".join(f"{one}/{other}" for one, other in found)
        raise click.UsageError(f"several policies are named {text}: write {choices}")
    return entries[found[0]].policy


def parameters(policy: Policy, text: str) -> dict[str, Any]:
    """A policy's parameters: defaults, changed by text as "paper,decrease_max=0.3,weight=1/0/0.5".

    If the text is empty, the result is {}, so that a replay can use the recorded parameters.
    """
    from transport.compiler.emit import fields_text, presets_text

    if not text:
        return {}
    fields, defaults = fields_text(policy.params), policy.params.filled().tobytes()
    sets = presets_text(policy)
    try:
        return values_of(fields, native.policy_params(policy.name, fields, defaults, text, sets))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
