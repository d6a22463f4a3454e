"""Gives access to the two-endpoint rig: `rigs.X` is `_rig.X`, an extension that only tests have."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.lib.built import extension

if TYPE_CHECKING:
    from tests.core._rig import *  # noqa: F403


def load() -> ModuleType:
    """The extension itself."""
    return extension("_rig", "make test-native")


def __getattr__(name: str) -> Any:
    # Python itself looks up names with two underscores; these must not load the extension.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(load(), name)
