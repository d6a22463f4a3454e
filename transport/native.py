"""Gives access to the native extension: `native.X` is `_native.X`, loaded on first use.

If the extension is not built, every use raises NativeMissingError.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport._native import *  # noqa: F403

PACKAGE = Path(__file__).resolve().parent
PLUGIN_PATH = PACKAGE / "lib" / "libnccl-net-weft.so"
POLICY_DIRECTORY = PACKAGE / "policies"


class NativeMissingError(ImportError):
    """The extension is missing or does not load; the message is one line with the remedy."""


@cache
def load() -> ModuleType:
    """The extension module itself."""
    try:
        return import_module("transport._native")
    except ModuleNotFoundError as error:
        if error.name != "transport._native":
            raise
        raise NativeMissingError("the native extension is not built: run make build") from None
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while the extension started
            raise error.__cause__ from None
        raise NativeMissingError(
            f"the native extension cannot be loaded ({error}): run make build"
        ) from error


def __getattr__(name: str) -> Any:
    # Python itself looks up names with two underscores; these must not load the extension.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(load(), name)
