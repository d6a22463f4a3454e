"""The policy compiler: from one Python file to a native library.

numba and llvmlite load with the first compilation.
"""

from __future__ import annotations

from pathlib import Path

from congestion.api import Policy
from transport.compiler import source
from transport.compiler.errors import PolicyError
from transport.compiler.interpret import Interpreted

__all__ = ["Interpreted", "PolicyError", "cached_policy", "compile_object", "compile_policy"]


def compile_policy(policy_or_path: Policy | str | Path, out: str | Path, *, cpu: str = "") -> Path:
    """Write the policy as a shared library for a CPU baseline, this architecture's by default."""
    from transport.compiler import emit

    policy = source.load(policy_or_path)
    return emit.write_library(policy, Path(out), cpu or emit.baseline())


def compile_object(
    policy_or_path: Policy | str | Path, out: str | Path, *, symbol: str = "", cpu: str = ""
) -> Path:
    """Write the policy as an object to link in, its descriptor under a name of its own."""
    from transport.compiler import emit

    policy = source.load(policy_or_path)
    symbol = symbol or f"{emit.DESCRIPTOR}_{policy.family.name}_{policy.name.replace('-', '_')}"
    return emit.write_object(policy, Path(out), symbol, cpu or emit.baseline())


def cached_policy(policy_or_path: Policy | str | Path, *, cpu: str = "") -> Path:
    """The policy's library in the user's cache, compiled when nothing that fits lies there."""
    from transport.compiler import cache

    return cache.compiled(policy_or_path, cpu)
