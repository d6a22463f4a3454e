"""The extension's interface of the dumbbell simulator, for type checkers: a part of _native.pyi."""

from typing import final

from transport._native_counters import FlowCounters

# native/bind/arena.cc

@final
class LinkConfig:
    def __init__(
        self,
        *,
        bytes_per_s: int = 0,
        delay_ns: int = 0,
        queue_bytes_max: int = 0,
        mark_from_bytes: int = 0,
        mark_full_bytes: int = 0,
        loss: float = 0.0,
        jitter_ns: int = 0,
        reorder: float = 0.0,
        reorder_ns_max: int = 0,
    ) -> None: ...
    bytes_per_s: int
    delay_ns: int
    queue_bytes_max: int
    mark_from_bytes: int
    mark_full_bytes: int
    loss: float
    jitter_ns: int
    reorder: float
    reorder_ns_max: int

@final
class PathChange:
    def __init__(
        self,
        *,
        at_ns: int,
        path: int,
        bytes_per_s: int = -1,
        delay_ns: int = -1,
        loss: float = -1.0,
        up: int = -1,
    ) -> None: ...
    at_ns: int
    path: int
    bytes_per_s: int
    delay_ns: int
    loss: float
    up: int

@final
class FlowPlan:
    def __init__(
        self,
        *,
        from_host: int,
        to_host: int,
        start_ns: int = 0,
        stop_ns: int = -1,
        message_bytes: int = 1 << 20,
        messages: int = 0,
        ahead: int = 4,
    ) -> None: ...
    from_host: int
    to_host: int
    start_ns: int
    stop_ns: int
    message_bytes: int
    messages: int
    ahead: int

@final
class ArenaPlan:
    def __init__(self) -> None: ...
    seed: int
    segment_bytes: int
    paths: list[LinkConfig]
    ack_loss: float
    sender_port: LinkConfig
    receiver_port: LinkConfig
    changes: list[PathChange]
    flows: list[FlowPlan]
    window_bytes_max: int
    rto_ns_min: int
    rto_ns_max: int
    port_buffer_bytes: int
    link_bytes_per_s: int
    limit_ns: int
    measure_from_ns: int
    trace_ns: int
    recording_bytes_max: int
    def choose(
        self, family: str, name: str, directories: list[str] = [], params: bytes = b""
    ) -> None: ...
    def choose_text(self, family: str, text: str, directories: list[str] = []) -> str: ...

@final
class LinkTotals:
    @property
    def offered(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def swallowed(self) -> int: ...
    @property
    def marked(self) -> int: ...
    @property
    def bytes_delivered(self) -> int: ...

@final
class FlowReport:
    @property
    def delivered_bytes(self) -> int: ...
    @property
    def goodput_bytes_per_s(self) -> float: ...
    @property
    def messages(self) -> int: ...
    @property
    def finished_ns(self) -> int: ...
    @property
    def message_ns_p50(self) -> int: ...
    @property
    def message_ns_p99(self) -> int: ...
    @property
    def copies_max(self) -> int: ...
    @property
    def copies_beyond_window(self) -> int: ...
    @property
    def sent(self) -> FlowCounters: ...
    @property
    def segments_duplicate(self) -> int: ...

@final
class PathTotals:
    @property
    def forward(self) -> LinkTotals: ...
    @property
    def back(self) -> LinkTotals: ...
    @property
    def queue_bytes_p99(self) -> int: ...

@final
class PortTotals:
    @property
    def host(self) -> int: ...
    @property
    def incoming(self) -> LinkTotals: ...
    @property
    def queue_bytes_p99(self) -> int: ...

@final
class Trace:
    @property
    def at_ns(self) -> list[int]: ...
    @property
    def window_bytes(self) -> list[int]: ...
    @property
    def inflight_bytes(self) -> list[int]: ...
    @property
    def pacing_bytes_per_s(self) -> list[int]: ...
    @property
    def delivered_bytes(self) -> list[int]: ...
    @property
    def queue_bytes(self) -> list[int]: ...
    @property
    def path_bytes(self) -> list[int]: ...

@final
class ArenaReport:
    @property
    def violation(self) -> str: ...
    @property
    def violations(self) -> int: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def jain(self) -> float: ...
    @property
    def goodput_bytes_per_s(self) -> float: ...
    @property
    def message_ns_p50(self) -> int: ...
    @property
    def message_ns_p99(self) -> int: ...
    @property
    def policies_failed(self) -> int: ...
    @property
    def policy_failure(self) -> str: ...
    @property
    def storage_bytes_max(self) -> int: ...
    @property
    def flows(self) -> list[FlowReport]: ...
    @property
    def paths(self) -> list[PathTotals]: ...
    @property
    def ports(self) -> list[PortTotals]: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def recording(self) -> bytes: ...

def run_arena(plan: ArenaPlan) -> ArenaReport: ...
