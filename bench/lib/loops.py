"""Gives access to native loops that benchmarks time: `loops.X` is `_loops.X`, their extension."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.lib.built import extension

if TYPE_CHECKING:
    from bench.lib._loops import *  # noqa: F403


def load() -> ModuleType:
    """Loads the C++ extension `_loops` from the build tree."""
    return extension("_loops", "make bench-native")


def __getattr__(name: str) -> Any:
    # Python itself looks up names with two underscores; these must not load the extension.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(load(), name)
