"""Finds the policy that a command-line argument names, and parses its parameters.

An unknown name is a usage error (exit status 2). A policy that exists and cannot be loaded is a
failure (exit status 1).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

from congestion.api import FAMILIES, Policy
from congestion.registry import Registry, RegistryError, survey

# The number syntax of native/engine/policies/policy_choice.cc. int() and float() would also accept
# "1_0", " 1" and "+1".
WHOLE = re.compile(r"-?[0-9]+")
REAL = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
SPACE = " \t\n"


def registered() -> Registry:
    """All registered policies; raises ClickException if the registry cannot be read."""
    try:
        return survey()
    except RegistryError as error:
        raise click.ClickException(str(error)) from None


def is_file(text: str) -> bool:
    """Whether the text names a file rather than a registered policy."""
    return text.endswith(".py") or Path(text).is_file()


def loaded(file: str) -> Policy:
    """The policy that a file declares."""
    from transport.compiler import PolicyError
    from transport.compiler.source import load

    if not Path(file).is_file():
        raise click.UsageError(f"{file}: no such file")
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
    """Parses "decrease_max=0.3,weight=1/0/0.5" by the policy's record, as the engine does."""
    given: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, values = part.partition("=")
        name = name.strip()
        if name not in policy.params.defaults:
            there = ", ".join(policy.params.defaults) or "none"
            raise click.UsageError(f"{policy.name} has no parameter {name!r}; it has: {there}")
        field = policy.params.dtype[name]
        count = field.shape[0] if field.shape else 1
        words = values.split("/")
        if len(words) > count:
            raise click.UsageError(
                f"{policy.name}: {name} takes {count} values at most, got {len(words)}"
            )
        words = [word.strip(SPACE) for word in words]
        numbers = [number(f"{policy.name}: {name}={word}", word, field.base.kind) for word in words]
        if field.shape:
            # Values that are not given keep their defaults.
            given[name] = numbers + list(policy.params.defaults[name])[len(numbers) :]
        else:
            given[name] = numbers[0]
    return given


def number(what: str, word: str, kind: str) -> int | float:
    """Parses a 64-bit integer (kind "i") or a finite float."""
    if kind == "i":
        if WHOLE.fullmatch(word) is None:
            raise click.UsageError(f"{what}: not a whole number")
        if not -(1 << 63) <= int(word) < 1 << 63:
            raise click.UsageError(f"{what}: too large for 64 bits")
        return int(word)
    value = float(word) if REAL.fullmatch(word) else math.nan
    if not math.isfinite(value):
        raise click.UsageError(f"{what}: not a finite number")
    return value
