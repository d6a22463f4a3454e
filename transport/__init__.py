"""The Python package of weft: endpoints, connections, policies, diagnosis and the command line.

Public names are imported on first use, so that `import transport` does not load the extension.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport import compiler, errors, native
    from transport.endpoint.buffers import Buffer, DeviceArray
    from transport.endpoint.connection import Connection, Request
    from transport.endpoint.control import ControlLoop, Telemetry
    from transport.endpoint.endpoint import Endpoint, Listener, Policies
    from transport.endpoint.knobs import KnobError, KnobValue
    from transport.endpoint.memory import Memory
    from transport.errors import WeftError
    from transport.native import ConnectionCounters, Device, EndpointCounters
    from transport.policies.choice import PolicyState
    from transport.policies.recording import LiveRecording

# Maps each public name to the module that defines it.
_PUBLIC = {
    "Endpoint": "transport.endpoint.endpoint",
    "Listener": "transport.endpoint.endpoint",
    "Connection": "transport.endpoint.connection",
    "Request": "transport.endpoint.connection",
    "Memory": "transport.endpoint.memory",
    "Buffer": "transport.endpoint.buffers",
    "DeviceArray": "transport.endpoint.buffers",
    "Device": "transport.native",
    "ConnectionCounters": "transport.native",
    "EndpointCounters": "transport.native",
    "PolicyState": "transport.policies.choice",
    "Policies": "transport.endpoint.endpoint",
    "LiveRecording": "transport.policies.recording",
    "KnobValue": "transport.endpoint.knobs",
    "ControlLoop": "transport.endpoint.control",
    "Telemetry": "transport.endpoint.control",
    "WeftError": "transport.errors",
    "KnobError": "transport.endpoint.knobs",
    "errors": "transport.errors",
    "native": "transport.native",
    "compiler": "transport.compiler",
}

__all__ = [  # noqa: RUF022, in the order of _PUBLIC
    "__version__",
    "Endpoint",
    "Listener",
    "Connection",
    "Request",
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
