"""The one door to the native extension: `native.X` is `_native.X`, loaded on first use.

Without a built extension every use raises NativeMissingError.
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
    """The extension is absent or does not load; the text is one line with its remedy."""


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
        raise NativeMissingError(
            f"the native extension does not load ({error}): run make build"
        ) from error


def __getattr__(name: str) -> Any:
    # A dunder is Python asking about this module, not a user asking for the extension.
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(load(), name)
