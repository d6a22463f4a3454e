"""Checks that come before a policy runs: its language, its library and its state size."""

from __future__ import annotations

from pathlib import Path

from congestion.api import Policy
from transport.compiler import cache, emit, lint
from transport.compiler.emit import DESCRIPTOR, NEEDS
from transport.compiler.errors import PolicyError, ToolMissingError
from transport.compiler.library import Library, jit, load
from transport.compiler.objectfile import symbols
from transport.conformance.result import Outcome, Outcomes, verdict


def language(policy: Policy) -> Outcome:
    """Checks the language: constant loops, no recursion, only numbers and records."""
    bound = "numbers, records, constant loops"
    try:
        lint.check(policy)
    except PolicyError as error:
        return verdict("language", False, error.reason, bound, str(error))
    return verdict("language", True, "only these", bound, "")


def written(policy: Policy, folder: Path, hooks: emit.Lowered) -> Path:
    """Compiles the policy into the user's cache, as set_policy does, or else into `folder`."""
    try:
        cache.directory()
    except PolicyError:
        out = folder / f"{policy.family.name}_{policy.name}.so"
        return emit.write_library(policy, out, emit.baseline(), hooks)
    return cache.compiled(policy, hooks=hooks)


def compiled(policy: Policy, folder: Path) -> tuple[Outcome, dict[str, Library], Path]:
    """Compiles the policy into a file and into memory; no libraries if the compiler refuses it.

    ToolMissingError if this host cannot compile: that says nothing about the policy.
    """
    bound = "libm alone; no Python, no heap"
    try:
        hooks = emit.lowered(policy)
        path = written(policy, folder, hooks)
        libraries = {"from a file": load(path), "in the process": jit(policy, hooks=hooks)}
    except ToolMissingError:
        raise
    except PolicyError as error:
        return verdict("compiles", False, error.reason, bound, str(error)), {}, folder
    found = symbols(path.read_bytes(), dynamic=True)
    needs = ", ".join(sorted(found.undefined)) or "nothing"
    passed = found.undefined <= NEEDS and found.defined == {DESCRIPTOR}
    remedy = "use numbers and records only; `measured` lists what else it needs"
    return verdict("compiles", passed, f"needs {needs}", bound, remedy), libraries, path


def state_size(policy: Policy) -> Outcomes:
    size = policy.flow.size_bytes + policy.shared.size_bytes
    most = policy.promises.state_bytes_max
    if most is not None:
        yield verdict(
            "state size",
            size <= most,
            f"{size} bytes",
            f"<= {most} bytes",
            "state_bytes_max counts the flow record and one path or port record",
        )
