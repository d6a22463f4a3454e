"""Compiles policies: one Python file becomes a native library.

numba and llvmlite are imported by the first compilation.
"""

from __future__ import annotations

from pathlib import Path

from congestion.api import Policy
from transport.compiler import source
from transport.compiler.errors import PolicyError
from transport.compiler.interpret import Interpreted

__all__ = ["Interpreted", "PolicyError", "cached_policy", "compile_object", "compile_policy"]


def compile_policy(policy_or_path: Policy | str | Path, out: str | Path, *, cpu: str = "") -> Path:
    """Compiles a policy to a shared library; `cpu` defaults to this machine's baseline."""
    from transport.compiler import emit

    policy = source.load(policy_or_path)
    return emit.write_library(policy, Path(out), cpu or emit.baseline())


def compile_object(
    policy_or_path: Policy | str | Path, out: str | Path, *, symbol: str = "", cpu: str = ""
) -> Path:
    """Compiles a policy to an object file whose descriptor has the given symbol."""
    from transport.compiler import emit

    policy = source.load(policy_or_path)
    symbol = symbol or f"{emit.DESCRIPTOR}_{policy.family.name}_{policy.name.replace('-', '_')}"
    return emit.write_object(policy, Path(out), symbol, cpu or emit.baseline())


def cached_policy(policy_or_path: Policy | str | Path, *, cpu: str = "") -> Path:
    """The policy's library in the user's cache; compiles it if it is not there."""
    from transport.compiler import cache

    return cache.compiled(policy_or_path, cpu)
