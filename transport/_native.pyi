"""The interface of the extension, for type checkers; a test compares this file with the binary.

The docstrings are in the binary.
"""

from collections.abc import Sequence
from typing import Any, final

from transport._native_arena import (
    ArenaPlan as ArenaPlan,
)
from transport._native_arena import (
    ArenaReport as ArenaReport,
)
from transport._native_arena import (
    FlowPlan as FlowPlan,
)
from transport._native_arena import (
    FlowReport as FlowReport,
)
from transport._native_arena import (
    LinkConfig as LinkConfig,
)
from transport._native_arena import (
    LinkTotals as LinkTotals,
)
from transport._native_arena import (
    PathChange as PathChange,
)
from transport._native_arena import (
    PathTotals as PathTotals,
)
from transport._native_arena import (
    PortTotals as PortTotals,
)
from transport._native_arena import (
    Trace as Trace,
)
from transport._native_arena import (
    run_arena as run_arena,
)
from transport._native_counters import (
    ConnectionCounters as ConnectionCounters,
)
from transport._native_counters import (
    EndpointCounters as EndpointCounters,
)
from transport._native_counters import (
    EngineCounters as EngineCounters,
)
from transport._native_counters import (
    FlowCounters as FlowCounters,
)
from transport._native_counters import (
    PathCounters as PathCounters,
)
from transport._native_counters import (
    counter_table as counter_table,
)
from transport._native_fabric import (
    DEPENDENCY_PLAN as DEPENDENCY_PLAN,
)
from transport._native_fabric import (
    PATH_CHOICE as PATH_CHOICE,
)
from transport._native_fabric import (
    PORT_CHANGE as PORT_CHANGE,
)
from transport._native_fabric import (
    PORT_PLAN as PORT_PLAN,
)
from transport._native_fabric import (
    TRANSFER_PLAN as TRANSFER_PLAN,
)
from transport._native_fabric import (
    Fabric as Fabric,
)
from transport._native_fabric import (
    FabricPlan as FabricPlan,
)
from transport._native_fabric import (
    FabricTotals as FabricTotals,
)
from transport._native_replay import (
    Replay as Replay,
)
from transport._native_replay import (
    ReplayedPolicy as ReplayedPolicy,
)

# native/bind/crc32c.cc

def crc32c(data: bytes) -> int: ...

# native/bind/trace_records.cc

def trace_records(file: bytes, begin: int) -> tuple[bytes, int, str]: ...
def trace_schema() -> str: ...

# native/bind/knobs.cc

def knob_table() -> list[
    tuple[str, str, str, str, str, str, str, str, str, list[tuple[str, str, str, str, str, str]]]
]: ...
def load_knobs() -> dict[str, str]: ...

# native/bind/policies.cc

def policy_problem(family: str, text: str, directories: list[str] = ...) -> str: ...

# native/bind/rdma.cc

HAS_VERBS: bool

def rdma_modes(device: str, port: int, gid_index: int) -> tuple[list[str], str]: ...

# native/bind/counters.cc

def status_table() -> list[tuple[str, int, str]]: ...

# native/bind/runtime.cc

def open_runtime(settings: list[tuple[str, str]]) -> tuple[int, str, bool, Runtime | None]: ...

@final
class Buffer:
    def __init__(self, object: Any, argument: str, writable: bool) -> None: ...  # noqa: A002
    @property
    def nbytes(self) -> int: ...

@final
class Memory:
    @property
    def nbytes(self) -> int: ...
    @property
    def used(self) -> bool: ...
    def holds(self, part: Buffer | DeviceBuffer) -> bool: ...

@final
class Request:
    @property
    def done(self) -> bool: ...
    @property
    def status(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def outcome(self) -> int: ...
    def wait(self, timeout_ns: int) -> int: ...

@final
class DeviceBuffer:
    @property
    def nbytes(self) -> int: ...
    def lies_with(self, other: DeviceBuffer) -> bool: ...
    def come_after(self, stream: int) -> tuple[int, str]: ...
    def come_after_intake(self, intake: Intake) -> tuple[int, str]: ...
    def await_stream(self) -> tuple[int, str]: ...

@final
class Intake:
    @property
    def handle(self) -> int: ...

@final
class DeviceRequest:
    @property
    def done(self) -> bool: ...
    @property
    def status(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def error(self) -> str: ...
    def outcome(self) -> int: ...
    def wait(self, timeout_ns: int) -> int: ...
    def wait_on(self, stream: int) -> tuple[int, str]: ...

def reduce(
    type: str,  # noqa: A002
    operation: str,
    a: DeviceBuffer,
    b: DeviceBuffer,
    out: DeviceBuffer,
    also: DeviceBuffer | None,
    stream: int,
) -> tuple[int, str]: ...
def why_no_kernels() -> str: ...
def descriptors() -> tuple[int, str, int, int, tuple[int, int, int, int]]: ...
def usable_cores() -> float: ...
def read_dlpack(
    capsule: Any,
) -> tuple[int, int, int, int, list[int], list[int] | None, bool]: ...

@final
class Connection:
    def post_plain(self, buffer: object, receive: bool) -> Request | int | None: ...
    def post_send(
        self, buffer: Buffer | DeviceBuffer, memory: Memory | None = None
    ) -> tuple[int, Request | DeviceRequest | None]: ...
    def post_receive(
        self,
        buffer: Buffer | DeviceBuffer,
        memory: Memory | None = None,
        pieces: Sequence[Buffer] = (),
    ) -> tuple[int, Request | DeviceRequest | None]: ...
    def withdraw(self, request: Request | DeviceRequest) -> None: ...
    def close(self) -> None: ...
    def health(self) -> int: ...
    def peer_address(self) -> str: ...
    def counters(self) -> ConnectionCounters: ...
    def change_policy(
        self, family: str, text: str, params: bool, engine: int = -1
    ) -> tuple[int, str]: ...
    def policies(self) -> list[PolicyInfo]: ...

@final
class PolicyInfo:
    @property
    def family(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def source_sha256(self) -> str: ...
    @property
    def params_fields(self) -> str: ...
    @property
    def params(self) -> bytes: ...

@final
class Dial:
    def poll(self) -> tuple[int, Connection | None]: ...
    def wait(self, timeout_ns: int) -> None: ...
    def close(self) -> None: ...
    def error(self) -> str: ...
    def cause(self) -> int: ...

@final
class Listener:
    def accept(self) -> tuple[int, Connection | None]: ...
    def wait(self, timeout_ns: int) -> None: ...
    def close(self) -> None: ...
    def trouble(self, within_ns: int) -> tuple[int, str]: ...
    def handle(self) -> bytes: ...
    def port(self) -> int: ...

@final
class Device:
    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def pci_path(self) -> str: ...
    @property
    def guid(self) -> int: ...
    @property
    def speed_mbps(self) -> int: ...
    @property
    def mtu_bytes(self) -> int: ...

@final
class Runtime:
    def devices(self) -> list[Device]: ...
    def register_memory(self, buffer: Buffer | DeviceBuffer) -> Memory: ...
    def lend_intake(self, device: int) -> tuple[int, str, Intake | None]: ...
    def hold_device(
        self, owner: Any, runs: list[tuple[int, int]], device: int
    ) -> tuple[int, str, DeviceBuffer | None]: ...
    def listen(
        self,
        device: int,
        port: int,
        policies: str = "",
        open: bool = False,  # noqa: A002
    ) -> tuple[int, str, Listener | None]: ...
    def connect_handle(
        self, device: int, handle: bytes, policies: str = ""
    ) -> tuple[int, str, Dial | None]: ...
    def connect_address(
        self, device: int, host: str, port: int, policies: str = ""
    ) -> tuple[int, str, Dial | None]: ...
    def change_policy(self, family: str, text: str, params: bool) -> tuple[int, str]: ...
    def policies(self) -> list[PolicyInfo]: ...
    def start_recording(self, path: str, bytes_max: int) -> tuple[int, str, str]: ...
    def stop_recording(self) -> tuple[int, str, tuple[int, int, int, str]]: ...
    def event_descriptor(self) -> int: ...
    def counters(self) -> EndpointCounters: ...
    def telemetry_page(self) -> str: ...
    def summary(self) -> str: ...
    def close(self) -> None: ...
