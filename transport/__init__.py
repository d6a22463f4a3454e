"""The Python package of weft: endpoints, connections, policies, diagnosis and the command line.

Public names are imported on first use, so that `import transport` does not load the extension.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport import compiler, errors, native
    from transport.buffers import Buffer, DeviceArray
    from transport.connection import Connection, Handle
    from transport.control import ControlLoop, Telemetry
    from transport.endpoint import Endpoint, Listener, Policies
    from transport.errors import WeftError
    from transport.knobs import KnobError, KnobValue
    from transport.memory import Memory
    from transport.native import ConnectionCounters, Device, EndpointCounters
    from transport.policy_choice import PolicyState
    from transport.recording import LiveRecording

# Maps each public name to the module that defines it.
_PUBLIC = {
    "Endpoint": "transport.endpoint",
    "Listener": "transport.endpoint",
    "Connection": "transport.connection",
    "Handle": "transport.connection",
    "Memory": "transport.memory",
    "Buffer": "transport.buffers",
    "DeviceArray": "transport.buffers",
    "Device": "transport.native",
    "ConnectionCounters": "transport.native",
    "EndpointCounters": "transport.native",
    "PolicyState": "transport.policy_choice",
    "Policies": "transport.endpoint",
    "LiveRecording": "transport.recording",
    "KnobValue": "transport.knobs",
    "ControlLoop": "transport.control",
    "Telemetry": "transport.control",
    "WeftError": "transport.errors",
    "KnobError": "transport.knobs",
    "errors": "transport.errors",
    "native": "transport.native",
    "compiler": "transport.compiler",
}

__all__ = [  # noqa: RUF022, in the order of _PUBLIC
    "__version__",
    "Endpoint",
    "Listener",
    "Connection",
    "Handle",
    "Memory",
    "Buffer",
    "DeviceArray",
    "Device",
    "ConnectionCounters",
    "EndpointCounters",
    "PolicyState",
    "Policies",
    "LiveRecording",
    "KnobValue",
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
