"""Finds the policy that the words of a command line mean, and its parameters.

A name that nobody has is wrong usage (exit status 2); a policy that is there and cannot be loaded
has failed (1).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

from congestion.api import FAMILIES, Policy
from congestion.registry import Registry, RegistryError, survey

# As native/engine/policies/policy_choice.cc reads them; Python takes more ("1_0", " 1", "+1").
WHOLE = re.compile(r"-?[0-9]+")
REAL = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
SPACE = " \t\n"


def registered() -> Registry:
    """All registered policies, or one line that says why they cannot be had."""
    try:
        return survey()
    except RegistryError as error:
        raise click.ClickException(str(error)) from None


def is_file(text: str) -> bool:
    """Whether the words name a file, and not a registered policy."""
    return text.endswith(".py") or Path(text).is_file()


def loaded(file: str) -> Policy:
    """The policy that a file declares."""
    from transport.compiler import PolicyError
    from transport.compiler.source import load

    if not Path(file).is_file():
        raise click.UsageError(f"{file}: there is no such file")
    if file.endswith(".so"):
        raise click.UsageError(f"{file}: a library has no source; give the .py file")
    try:
        return load(file)
    except PolicyError as error:
        raise click.ClickException(str(error)) from None


def named(text: str, family: str = "", first: bool = False) -> Policy:
    """A file that declares a policy, a registered name, or family/name where several have it.

    `family`: only one of it. `first`: of several, that of the first family.
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
        raise click.UsageError(f"no {kind} {text!r} and no such file: there are {names}")
    if len(found) > 1 and not first:
        choices = " or ".join(f"{one}/{other}" for one, other in found)
        raise click.UsageError(f"{text} is the name of several policies: write {choices}")
    return entries[found[0]].policy


def parameters(policy: Policy, text: str) -> dict[str, Any]:
    """ "decrease_max=0.3,weight=1/0/0.5" by the policy's record, as the engine reads it."""
    given: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, values = part.partition("=")
        name = name.strip()
        if name not in policy.params.defaults:
            there = ", ".join(policy.params.defaults) or "none"
            raise click.UsageError(f"{policy.name} has no parameter {name!r}: there are {there}")
        field = policy.params.dtype[name]
        count = field.shape[0] if field.shape else 1
        words = values.split("/")
        if len(words) > count:
            raise click.UsageError(f"{policy.name}: {name} holds {count} values, not {len(words)}")
        words = [word.strip(SPACE) for word in words]
        numbers = [number(f"{policy.name}: {name}={word}", word, field.base.kind) for word in words]
        if field.shape:
            # What is not given keeps its default.
            given[name] = numbers + list(policy.params.defaults[name])[len(numbers) :]
        else:
            given[name] = numbers[0]
    return given


def number(what: str, word: str, kind: str) -> int | float:
    """A whole number of 64 bits, or a finite one."""
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
