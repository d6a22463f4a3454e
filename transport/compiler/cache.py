"""The cache of compiled policies.

A library's file name contains a hash of its source, the versions of numba and llvmlite, the CPU and
the ABI. A library is used only if its content matches the digest in the file beside it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import FunctionType

from congestion.api import Policy
from transport.compiler import emit, source
from transport.compiler.errors import PolicyError
from transport.ground import created

KEPT_MAX = 64  # libraries in the cache; those not used for longest are removed


def directory() -> Path:
    """The user's cache folder, created if it does not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "weft" / "policies"
    try:
        for one in reversed((folder, *folder.parents)):
            if not one.is_dir():
                one.mkdir(exist_ok=True, mode=0o700)  # the default mode may let a group write
        found = folder.stat()
    except OSError as error:
        raise PolicyError(
            str(folder),
            0,
            f"cannot create the policy cache: {error.strerror}",
            "set XDG_CACHE_HOME to a writable folder",
        ) from None
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # Other users could replace the libraries in this folder, which weft loads and runs.
        raise PolicyError(
            str(folder),
            0,
            "other users can write to the cache",
            f"chmod 700 {folder}, or remove it",
        )
    return folder


def _reached(policy: Policy) -> Iterator[FunctionType]:
    """Every function that the hooks may call, directly or through other functions."""
    seen: set[FunctionType] = set()
    waiting: list[FunctionType] = [hook for hook in policy.hooks if hook is not None]
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        yield function
        known = (function.__globals__.get(name) for name in source.global_names(function))
        waiting += [one for one in known if isinstance(one, FunctionType)]


def fingerprint(policy: Policy, cpu: str) -> str:
    """A hash of everything that the compiled code depends on."""
    compiler = sorted(Path(__file__).parent.glob("*.py"))
    parts = [
        f"abi {emit.ABI_VERSION}, {cpu}, numba {version('numba')}, llvmlite {version('llvmlite')}",
        f"{policy.family.name} {policy.name}",
        *(hashlib.sha256(file.read_bytes()).hexdigest() for file in compiler),
    ]
    family = policy.family
    layouts = (policy.flow, policy.shared, policy.params, family.event, family.result)
    parts += [f"{layout.dtype.descr} {dict(layout.defaults)}" for layout in layouts]
    files: set[str] = set()
    constants: set[str] = set()
    for function in _reached(policy):
        files.add(function.__code__.co_filename)
        for name in source.global_names(function):
            value = function.__globals__.get(name)
            if isinstance(value, int | float):
                constants.add(f"{function.__qualname__} {name} {value!r}")
    parts += [hashlib.sha256(source.text_of(file).encode()).hexdigest() for file in sorted(files)]
    parts += sorted(constants)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _intact(library: Path, digest: Path) -> bool:
    try:
        wanted = digest.read_text(encoding="ascii").strip()
        return hashlib.sha256(library.read_bytes()).hexdigest() == wanted
    except (OSError, UnicodeDecodeError):
        return False


def compiled(
    policy_or_path: Policy | str | Path, cpu: str = "", hooks: emit.Lowered | None = None
) -> Path:
    """The path of the policy's library: from the cache, or newly compiled."""
    policy = source.load(policy_or_path)
    cpu = cpu or emit.baseline()
    folder = directory()
    name = f"{policy.family.name}_{policy.name}-{fingerprint(policy, cpu)[:32]}"
    library, digest = folder / f"{name}.so", folder / f"{name}.sha256"
    if _intact(library, digest):
        os.utime(library)
        return library
    emit.write_library(policy, library, cpu, hooks)
    created.replace(digest, hashlib.sha256(library.read_bytes()).hexdigest())
    _prune(folder)
    return library


def _prune(folder: Path) -> None:
    kept = sorted(folder.glob("*.so"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in kept[KEPT_MAX:]:
        old.with_suffix(".sha256").unlink(missing_ok=True)
        old.unlink(missing_ok=True)
