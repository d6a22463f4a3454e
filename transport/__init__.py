"""The control plane of weft: endpoints, policies, diagnosis and the command line.

Every public name is resolved on first use, so that an import does not load the extension.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport import compiler, errors, native
    from transport.connection import Connection, Handle
    from transport.control import ControlLoop, Telemetry
    from transport.endpoint import Endpoint, Listener
    from transport.errors import WeftError
    from transport.knobs import KnobError
    from transport.memory import Memory

# Public name -> the module it lives in.
_PUBLIC = {
    "Endpoint": "transport.endpoint",
    "Listener": "transport.endpoint",
    "Connection": "transport.connection",
    "Handle": "transport.connection",
    "Memory": "transport.memory",
    "ControlLoop": "transport.control",
    "Telemetry": "transport.control",
    "WeftError": "transport.errors",
    "KnobError": "transport.knobs",
    "errors": "transport.errors",
    "native": "transport.native",
    "compiler": "transport.compiler",
}

__all__ = [  # noqa: RUF022, in the order of the table
    "__version__",
    "Endpoint",
    "Listener",
    "Connection",
    "Handle",
    "Memory",
    "ControlLoop",
    "Telemetry",
    "WeftError",
    "KnobError",
    "errors",
    "native",
    "compiler",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("weft")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'transport' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    return module if _PUBLIC[name] == f"transport.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
